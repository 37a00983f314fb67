// Any bytes as a tokenizer.json, or behind its first byte as text for one of a few tokenizers: an error that says so,
// or ids that are in the vocabulary, with ranges that lie in the text, that decode, and that stay the same where the
// text is cut.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/error.h"
#include "engine/tokenizer/text_tokenizer.h"

namespace {

using trainer::tokenizer::TextTokenizer;

void check_cut(const TextTokenizer& tokenizer, std::string_view text, const trainer::tokenizer::PlainText& plain) {
  const std::size_t cut = tokenizer.last_cut(text);
  if (cut == 0) return;
  std::vector<std::int32_t> ids = tokenizer.encode(text.substr(0, cut), {.plain = plain}).ids;
  for (const std::int32_t id : tokenizer.encode(text.substr(cut + tokenizer.cut_gap()), {.plain = plain}).ids)
    ids.push_back(id);
  if (ids != tokenizer.encode(text, {.plain = plain}).ids) std::abort();
}

void attempt(const TextTokenizer& tokenizer, std::string_view text) {
  try {
    for (const bool plain : {false, true}) {
      trainer::tokenizer::EncodeOptions options{.special = plain, .ranges = true};
      options.plain.all = plain;
      const trainer::tokenizer::Tokens tokens = tokenizer.encode(text, options);
      if (tokens.ids.size() != tokens.ranges.size()) std::abort();
      for (const auto& range : tokens.ranges)
        if (range.begin > range.end || range.end > text.size()) std::abort();
      if (!plain && tokenizer.encode(text).ids != tokens.ids) std::abort();
      tokenizer.decode(tokens.ids, plain);
      check_cut(tokenizer, text, options.plain);
    }
  } catch (const trainer::DataError&) {
  }
}

// Tokenizers whose text is fuzzed: a byte-level one, and one with normalizers and byte fallback.
const TextTokenizer& known(int which) {
  static const auto byte_level = TextTokenizer::parse(
      R"({"model": {"vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġa": 4}, "merges": ["a b", "Ġ a"]}, "normalizer": {"type": "NFC"},
          "added_tokens": [{"id": 5, "content": "<s>", "normalized": false, "special": true, "lstrip": true, "rstrip": true}],
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}, "decoder": {"type": "ByteLevel"}})",
      "known");
  static const auto pieces = TextTokenizer::parse(
      R"({"model": {"vocab": {"a": 0, "▁": 1, "▁a": 2, "<0xE2>": 3, "<unk>": 4}, "merges": [["▁", "a"]], "byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true},
          "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": true, "strip_right": true},
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
          "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 1}]}})",
      "known");
  static const auto patterns = TextTokenizer::parse(
      R"({"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "unk_token": "b"},
          "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, {"type": "Punctuation", "behavior": "MergedWithPrevious"},
            {"type": "Split", "pattern": {"Regex": "\\w+|[^\\w\\s]++|\\s{1,3}"}, "behavior": "MergedWithNext", "invert": false},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}]}, "decoder": {"type": "Metaspace", "replacement": "▁"}})",
      "known");
  // The kinds whose text can be cut: by a split pattern, and where spaces are pieces, with one before every text or
  // not.
  static const auto cut_by_pattern = TextTokenizer::parse(
      R"({"model": {"vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġa": 4, "aĠ": 5}, "merges": ["a b", "Ġ a", "a Ġ"]},
          "added_tokens": [{"id": 6, "content": "<s>", "normalized": false, "special": true, "lstrip": true},
            {"id": 7, "content": "a▁b", "normalized": true, "special": false}],
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"}})",
      "known");
  constexpr const char* kPieces =
      R"({"model": {"vocab": {"a": 0, "▁": 1, "▁a": 2, "<0xE2>": 3, "<unk>": 4, "b": 5, "▁▁": 6, "ab": 7},
          "merges": [["▁", "a"], ["▁", "▁"], ["a", "b"]], "byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true},
          "added_tokens": [{"id": 4, "content": "<unk>", "normalized": false, "special": true, "lstrip": true}, {"id": 8, "content": "bb", "normalized": false, "special": false}],
          "normalizer": {"type": "Sequence", "normalizers": [)";
  const auto of_pieces = [](const std::string& prepend) {
    return TextTokenizer::parse(
        kPieces + prepend + R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}})", "known");
  };
  static const auto spaces = of_pieces("");
  static const auto before = of_pieces(R"({"type": "Prepend", "prepend": "▁"}, )");
  const TextTokenizer* const all[] = {byte_level.get(),     pieces.get(), patterns.get(),
                                      cut_by_pattern.get(), spaces.get(), before.get()};
  return *all[which];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  if (size > 0 && data[0] < 6) {
    attempt(known(data[0]), all.substr(1));
    return 0;
  }
  try {
    const auto tokenizer = TextTokenizer::parse(all, "fuzz.json");
    attempt(*tokenizer, "a b  Ab1\n<s>\u00e9\u65e5 \U0001F600e\u0301\u2581");
    attempt(*tokenizer, all.substr(0, 200));
  } catch (const trainer::DataError&) {
  }
  return 0;
}
