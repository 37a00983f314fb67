// Small tokenizers of every kind against what Hugging Face's `tokenizers` gives for a list of texts
// (tests/goldens/tokenizer_goldens.py).
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/tokenizer/text_tokenizer.h"
#include "engine/tokenizer/train.h"
#include "tests/temporary.h"

using namespace trainer;
using namespace trainer::tokenizer;
using nlohmann::json;
using Ids = std::vector<std::int32_t>;

namespace {

const std::string kFolder = std::string(TRAINER_SOURCE_DIR) + "/tests/goldens/tokenizers/";

const json& cases() {
  static const json all = json::parse(tests::contents_of(kFolder + "cases.json"));
  return all;
}

std::shared_ptr<const TextTokenizer> tokenizer_named(const std::string& kind) {
  return TextTokenizer::read(kFolder + kind + ".json");
}

// Of what a golden holds only where it differs from something else.
template <typename T>
T or_else(const json& table, std::size_t index, const T& otherwise) {
  const std::string key = std::to_string(index);
  return table.contains(key) ? table[key].get<T>() : otherwise;
}

}  // namespace

TEST_CASE("ids and decoded text are those of the library, for every kind of tokenizer") {
  const auto texts = cases()["texts"].get<std::vector<std::string>>();
  for (const auto& [kind, golden] : cases()["kinds"].items()) {
    CAPTURE(kind);
    const auto tokenizer = tokenizer_named(kind);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(texts[i]);
      const Ids ids = golden["ids"][i].get<Ids>();
      CHECK(tokenizer->encode(texts[i]).ids == ids);
      CHECK(tokenizer->encode(texts[i], {.special = true}).ids == or_else(golden["special"], i, ids));
      CHECK(tokenizer->encode(texts[i], {.plain = {.all = true}}).ids == or_else(golden["plain"], i, ids));
      CHECK(tokenizer->decode(ids) == or_else(golden["decoded"], i, texts[i]));
      CHECK(tokenizer->decode(ids, true) == or_else(golden["skipped"], i, texts[i]));
    }
  }
}

TEST_CASE("a stream of ids gives the text of all of them, in whole characters") {
  const auto texts = cases()["texts"].get<std::vector<std::string>>();
  for (const auto& [kind, golden] : cases()["kinds"].items()) {
    CAPTURE(kind);
    const auto tokenizer = tokenizer_named(kind);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const Ids ids = golden["ids"][i].get<Ids>();
      StreamDecoder decoder(tokenizer, false);
      std::string all;
      for (const std::int32_t id : ids) all += decoder.add(id);
      CHECK(all + decoder.finish() == tokenizer->decode(ids));
    }
  }
}

TEST_CASE("a stream waits for the rest of a character and gives up on bytes that are none") {
  const auto tokenizer = tokenizer_named("gpt2");
  const Ids smile = tokenizer->encode("\xF0\x9F\xA6\x96").ids;
  REQUIRE(smile.size() > 1);
  StreamDecoder decoder(tokenizer, false);
  for (std::size_t i = 0; i + 1 < smile.size(); ++i) CHECK(decoder.add(smile[i]) == "");
  CHECK(decoder.add(smile.back()) == "\xF0\x9F\xA6\x96");
  std::string broken;
  for (int i = 0; i < 6; ++i) broken += decoder.add(smile.front());
  CHECK(broken.size() >= 9);
  CHECK(decoder.add(tokenizer->find("a")).ends_with("a"));
}

TEST_CASE("ranges follow each other through the text and end where it ends") {
  for (const std::string kind : {"gpt2", "llama3", "tekken", "gpt4o", "deepseek", "cl100k", "digits"}) {
    CAPTURE(kind);
    const auto tokenizer = tokenizer_named(kind);
    for (const json& each : cases()["texts"]) {
      const std::string text = each.get<std::string>();
      CAPTURE(text);
      const Tokens tokens = tokenizer->encode(text, {.ranges = true});
      CHECK(tokens.ids == tokenizer->encode(text).ids);
      REQUIRE(tokens.ranges.size() == tokens.ids.size());
      std::uint32_t end = 0;
      for (const SourceRange& range : tokens.ranges) {
        CHECK(range.begin == end);
        CHECK(range.end > range.begin);
        end = range.end;
      }
      CHECK(end == text.size());
    }
  }
}

TEST_CASE("ranges of a text that is normalized are those of the characters behind each id") {
  const auto qwen = tokenizer_named("qwen2");
  const std::string text = "e\u0301 x";  // é in two characters, which become one
  const Tokens tokens = qwen->encode(text, {.ranges = true});
  CHECK(tokens.ranges.front().begin == 0);
  CHECK(tokens.ranges.back().end == text.size());
  for (const SourceRange& range : tokens.ranges) CHECK((range.end <= 3 || range.begin >= 3));
  const auto llama = tokenizer_named("llama2");
  const Tokens pieces = llama->encode("ab \U0001F996", {.special = true, .ranges = true});
  CHECK(pieces.ranges.front().end == 0);  // <s>
  CHECK(pieces.ranges.back().begin == 6);
  CHECK(pieces.ranges.back().end == 7);  // the last byte of a character that has no token
}

TEST_CASE("special tokens are text in the parts that say so, and tokens elsewhere") {
  const auto tokenizer = tokenizer_named("llama3");
  const std::string text = "<|im_start|>a<|im_end|>b<|im_end|>";
  const std::int32_t end = tokenizer->find("<|im_end|>");
  const std::vector<SourceRange> parts{{12, 23}};
  const Ids ids = tokenizer->encode(text, {.plain = {.parts = parts}}).ids;
  CHECK(ids.front() == tokenizer->find("<|im_start|>"));
  CHECK(std::count(ids.begin(), ids.end(), end) == 1);
  CHECK(ids.back() == end);
  CHECK(tokenizer->decode(ids) == text);
}

TEST_CASE("a text cut where it can be cut has the ids of the whole") {
  const std::string text = tests::contents_of(kFolder + "train.txt");
  for (const std::string kind :
       {"gpt2", "llama3", "qwen2", "qwen35", "tekken", "gpt4o", "deepseek", "gemma", "llama2", "metaspace"}) {
    CAPTURE(kind);
    const auto tokenizer = tokenizer_named(kind);
    Ids ids;
    int cuts = 0;
    std::string rest = text;
    std::size_t size = 40;
    while (rest.size() > size) {
      const std::size_t cut = tokenizer->last_cut(std::string_view(rest).substr(0, size));
      if (cut == 0) {
        size += 40;
        continue;
      }
      const Ids part = tokenizer->encode(std::string_view(rest).substr(0, cut)).ids;
      ids.insert(ids.end(), part.begin(), part.end());
      rest.erase(0, cut + tokenizer->cut_gap());
      ++cuts;
      size = size % 97 + 40;
    }
    const Ids part = tokenizer->encode(rest).ids;
    ids.insert(ids.end(), part.begin(), part.end());
    CHECK(cuts > 50);
    CHECK(ids == tokenizer->encode(text).ids);
  }
  // A merge, or an added token, that joins a word to the space behind it.
  const auto gemma = [](const std::string& merge, const std::string& added) {
    const std::string vocab = R"("a": 0, "▁": 1, "b": 2, "▁a": 3, "a▁": 4, "▁b": 5)";
    return TextTokenizer::parse(
        R"({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, "added_tokens": [)" + added +
            R"(], "model": {"type": "BPE", "vocab": {)" + vocab + R"(}, "merges": [)" + merge + "]}}",
        "gemma");
  };
  const std::string spans = R"({"id": 6, "content": "a b", "normalized": true, "special": false})",
                    apart = R"({"id": 6, "content": "aa", "normalized": true, "special": false})";
  CHECK(gemma(R"("▁ a", "▁ b")", apart)->last_cut("a b") == 1);
  CHECK(gemma(R"("▁ a", "▁ b")", apart)->last_cut("a▁ b") == 0);
  CHECK(gemma(R"("a ▁", "▁ b")", apart)->last_cut("a b") == 0);
  CHECK(gemma(R"("▁ a", "▁ b")", spans)->last_cut("a b") == 0);
  // As DeepSeek's <｜end▁of▁sentence｜>: the text of such a token is not a word and a space.
  const std::string raw = R"({"id": 6, "content": "a▁b", "normalized": false, "special": true})";
  CHECK(gemma(R"("▁ a", "▁ b")", raw)->last_cut("a b") == 1);
  // What is put before every text is in place of one space, and not before an added token.
  const auto llama = tokenizer_named("llama2");
  CHECK(llama->cut_gap() == 1);
  CHECK(llama->last_cut("two words") == 3);
  for (const char* text : {"two  words", "two ", "two <s>", "<s> two", "two \u2581words"})
    CHECK(llama->last_cut(text) == 0);
  CHECK(tokenizer_named("words")->last_cut("two words") == 0);
}

TEST_CASE("training learns the merges of the library, in its order, and its file is read back") {
  TrainingOptions options;
  options.vocab = 700, options.pattern = "gpt4o";
  BpeTraining training(options);
  training.add(tests::contents_of(kFolder + "train.txt"));
  training.learn();
  CHECK(training.tokens() == cases()["trained"]["vocab"].get<std::vector<std::string>>());
  CHECK(json(training.merges()) == cases()["trained"]["merges"]);
  const auto tokenizer = TextTokenizer::parse(training.tokenizer_json(), "trained");
  CHECK(tokenizer->vocab_size() == 700);
  const std::string text = "<|endoftext|>the quick brown fox, \u65E5\u672C\n";
  CHECK(tokenizer->decode(tokenizer->encode(text).ids) == text);
  CHECK(tokenizer->encode(text).ids.front() == 0);
  CHECK(json::parse(training.config_json())["eos_token"] == "<|endoftext|>");
}

TEST_CASE("training refuses what cannot be a vocabulary") {
  TrainingOptions options;
  options.vocab = 256;
  CHECK(tests::contains(tests::message_of<UsageError>([&] { BpeTraining training(options); }), "257"));
  options.vocab = 300, options.special = {"a"};
  CHECK(tests::contains(tests::message_of<UsageError>([&] { BpeTraining training(options); }), "alphabet"));
  options.special = {}, options.pattern = "none";
  CHECK(tests::contains(tests::message_of<UsageError>([&] { BpeTraining training(options); }), "pattern"));
}

TEST_CASE("text that is not UTF-8 is refused with its offset") {
  const auto tokenizer = tokenizer_named("gpt2");
  CHECK(tests::contains(tests::message_of<DataError>([&] { tokenizer->encode("0123456789\xFFx"); }), "offset 10"));
  CHECK(tests::contains(tests::message_of<DataError>([&] { tokenizer->encode("a\xC3"); }), "offset 1"));
}
