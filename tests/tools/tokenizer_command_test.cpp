// tokenize, tokenizer train, and score of conversations.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/tools/workplace.h"

namespace trainer::tokenizer_command_test {

using nlohmann::json;
using namespace trainer::tests;

TEST_CASE("tokenizer train makes a folder with which tokenize goes from text to ids and back") {
  const Workplace in;
  const Outcome trained = in({"tokenizer", "train", "--vocab", "280", "text.txt", "-o", "mine"});
  INFO(trained.err);
  CHECK(trained.code == 0);
  CHECK(trained.out.empty());
  CHECK(contains(trained.err, "mine: 280 tokens"));
  CHECK(contains(contents_of(in.path("mine/tokenizer_config.json")), "<|endoftext|>"));
  in.write("texts.jsonl", "{\"text\": \"the lazy dog\"}\n\n{\"text\": \"<|endoftext|>\\u00e9\"}\n");
  const Outcome ids = in({"tokenize", "mine", "texts.jsonl"});
  INFO(ids.err);
  CHECK(ids.code == 0);
  CHECK(ids.err.empty());
  in.write("ids.jsonl", ids.out);
  CHECK(in({"tokenize", "mine", "ids.jsonl", "--decode"}).out ==
        "{\"text\":\"the lazy dog\"}\n{\"text\":\"<|endoftext|>\u00e9\"}\n");
  CHECK(contains(in({"tokenize", "mine/tokenizer.json", "ids.jsonl", "--decode", "--skip-special"}).out,
                 "{\"text\":\"\u00e9\"}"));
  const json document = parsed(in({"tokenize", "mine", "texts.jsonl", "--offsets", "--plain", "--json"}));
  CHECK(document["rows"][1]["ids"].size() > 3);
  CHECK(document["rows"][1]["offsets"].back() == json::array({14, 15}));
  CHECK(in({"tokenize", "train", "--vocab", "280", "text.txt", "-o", "again"}).code == 0);
  CHECK(contents_of(in.path("again/tokenizer.json")) == contents_of(in.path("mine/tokenizer.json")));
}

TEST_CASE("tokenize names the file and line of what it cannot take") {
  const Workplace in;
  REQUIRE(in({"tokenizer", "train", "--vocab", "280", "text.txt", "-o", "mine"}).code == 0);
  const auto error = [&](std::string_view line, std::vector<std::string> more = {}) {
    in.write("bad.jsonl", "{\"text\": \"a\", \"ids\": [1]}\n" + std::string(line) + "\n");
    std::vector<std::string> arguments{"tokenize", "mine", "bad.jsonl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = in(arguments);
    CHECK(outcome.code == 65);
    return outcome.err;
  };
  CHECK(contains(error("{\"txt\": 1}"), "bad.jsonl:2: has no \"text\""));
  CHECK(contains(error("{"), "bad.jsonl:2: is not a JSON object"));
  CHECK(contains(error("{\"ids\": [280]}", {"--decode"}), "bad.jsonl:2: 280 is not an id"));
  CHECK(in({"tokenize", "mine", "bad.jsonl", "--skip-special"}).code == 64);
  CHECK(in({"tokenize", "nowhere", "bad.jsonl"}).code == 65);
  CHECK(in({"tokenizer", "train", "--vocab", "256", "text.txt", "-o", "small"}).code == 64);
  in.write("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
  const Outcome foreign = in({"tokenize", "tokenizer.json", "bad.jsonl"});
  CHECK(foreign.code == 65);
  CHECK(contains(foreign.err, "tokenizer.json:1:11: model: \"Unigram\" is not supported; supported is BPE"));
}

TEST_CASE("score takes conversations by the folder's chat template, and says what is trained") {
  const Workplace in;
  std::filesystem::copy(std::string(TRAINER_SOURCE_DIR) + "/tests/goldens/folders/llama3", in.path("m"));
  in.write(
      "m/tokenizer.json",
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<": 2, ">": 3, "u": 4, ":": 5}, "merges": []}, "pre_tokenizer": null,
               "added_tokens": [{"id": 6, "content": "<>", "normalized": false, "special": true}]})");
  in.write(
      "rows.jsonl",
      R"({"messages": [{"role": "u", "content": "a<>"}, {"role": "assistant", "content": "b"}, {"role": "u", "content": "a"}]})"
      "\n");
  CHECK(contains(in({"score", "m", "rows.jsonl"}).err, "m: has no chat template"));
  in.write("m/chat_template.jinja",
           "{% for m in messages %}{{ m.role[0] if m.role is string else raise_exception('role?') }}:{{ m.content "
           "}}<>{% endfor %}{{ 'a:' if add_generation_prompt }}");
  const json document = parsed(in({"score", "m", "rows.jsonl", "--json"}));
  CHECK(document["rows"][0]["ids"] == json::array({4, 5, 0, 2, 3, 6, 0, 5, 1, 6, 4, 5, 0, 6}));
  const auto trained = document["rows"][0]["trained"].get<std::vector<bool>>();
  for (std::size_t i = 0; i < trained.size(); ++i) CHECK(trained[i] == (i == 8 || i == 9));
  const auto& logprobs = document["rows"][0]["logprobs"];
  CHECK(document["tokens"] == 2);
  CHECK(document["perplexity"].get<double>() ==
        doctest::Approx(std::exp(-(logprobs[8].get<double>() + logprobs[9].get<double>()) / 2)));
  in.write("rows.jsonl", "{\"ids\": [1]}\n{\"messages\": [{\"role\": 1, \"content\": \"a\"}]}\n");
  const Outcome bad = in({"score", "m", "rows.jsonl"});
  CHECK(bad.code == 65);
  CHECK(contains(bad.err, "rows.jsonl:2: m/chat_template.jinja:1:77: the template refuses the conversation: role?"));
}

}  // namespace trainer::tokenizer_command_test
