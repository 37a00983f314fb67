// Parts of a tokenizer alone: scanners against the regular expressions that they stand for, patterns, normal forms,
// long pieces.
#include <doctest/doctest.h>

#include <chrono>
#include <random>

#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "engine/tokenizer/character_set.h"
#include "engine/tokenizer/decoder.h"
#include "engine/tokenizer/normal_form.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/scanner.h"
#include "engine/tokenizer/text_tokenizer.h"
#include "engine/tokenizer/unicode.h"
#include "tests/temporary.h"

using namespace trainer;
using namespace trainer::tokenizer;
using Spans = std::vector<std::pair<std::size_t, std::size_t>>;

namespace {

Spans spans_of(const Regex& regex, std::string_view text) {
  Spans spans;
  regex.find_all(text, [&](std::size_t begin, std::size_t end) { spans.emplace_back(begin, end); });
  return spans;
}

Spans spans_of(Scanner scan, std::string_view text) {
  Spans spans;
  for (std::size_t at = 0; at < text.size();) {
    const Match match = scan(text, at);
    if (match.matched) spans.emplace_back(at, match.end);
    at = match.end;
  }
  return spans;
}

std::string random_text(std::mt19937& random) {
  static const std::u32string kPool =
      U"abzABZ's'T'll'VE'd'\u017F 0129 \u0661\u00BD\u2167  "
      U"\t\n\n\r\r/.,!?-_$+^`~\u00E9\u00DF\u01C5\u02B0\u00AA\u0301\u0327\u0903\u20DD\u65E5\u9FA5\u3042\u30A2\uAC00"
      U"\u05D0\U0001F600\u200D\u00A0\u3000\u2028\u0085\u180E\u200B\uFEFF\x7F\u0378\uE000\U0001E900\U00010D50\u1C89";
  std::string text;
  for (std::uint32_t i = 0, n = random() % 24; i < n; ++i) append_utf8(text, kPool[random() % kPool.size()]);
  return text;
}

std::string normal(NormalForm::Kind kind, std::string_view text) {
  const NormalForm& form = NormalForm::get(kind);
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t kept = form.unchanged_until(text, at);
    out.append(text.substr(at, kept - at));
    if (kept == text.size()) break;
    at = form.part_end(text, kept);
    form.append(text.substr(kept, at - kept), out);
  }
  return out;
}

std::string message_of_pattern(std::string_view pattern) {
  return tests::message_of<DataError>([&] { Regex regex(pattern); });
}

}  // namespace

TEST_CASE("a scanner finds what its regular expression finds") {
  std::mt19937 random(3);
  std::vector<std::string> texts;
  for (int i = 0; i < 4000; ++i) texts.push_back(random_text(random));
  std::vector<std::string> patterns{
      R"(\p{N}{1,3})", R"(\p{N})", "[一-龥\u3040-ゟ゠-ヿ]+",
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
  for (const std::string_view name : {"gpt2", "llama3", "qwen2", "qwen3.5", "tekken", "gpt4o"})
    patterns.emplace_back(pattern_named(name));
  for (const std::string& pattern : patterns) {
    CAPTURE(pattern);
    const Scanner scan = scanner_of(pattern);
    REQUIRE((scan != nullptr));
    const Regex regex(pattern);
    for (const std::string& text : texts) {
      CAPTURE(text);
      REQUIRE(spans_of(scan, text) == spans_of(regex, text));
    }
  }
}

TEST_CASE("a known pattern has its scanner whether its line breaks are escaped or not") {
  for (const char* name : {"llama3", "qwen2", "gpt4o"}) {
    std::string raw(pattern_named(name));
    REQUIRE(bool(scanner_of(raw)));
    for (const auto& [escape, character] : {std::pair{"\\r", '\r'}, std::pair{"\\n", '\n'}})
      for (std::size_t at; (at = raw.find(escape)) != std::string::npos;) raw.replace(at, 2, 1, character);
    CHECK(tests::contains(raw, "[^\r\n"));
    const bool same = scanner_of(raw) == scanner_of(pattern_named(name));
    CHECK(same);
    CHECK(spans_of(Regex(raw), "a\r\n b\n") == spans_of(Regex(pattern_named(name)), "a\r\n b\n"));
  }
  CHECK_FALSE(bool(scanner_of("\\p{L}")));
}

TEST_CASE("a pattern has the classes of Unicode 16 and the syntax of the library that tokenizer.json is written for") {
  CHECK(spans_of(Regex(R"(\p{L}+)"), "a\u1C89b 1") == Spans{{0, 5}});    // U+1C89 is new in Unicode 16
  CHECK(spans_of(Regex(R"(\s+)"), "a\u180E\u2028b") == Spans{{4, 7}});   // U+180E is no white space
  CHECK(spans_of(Regex(R"(\d{2}+)"), "12345") == Spans{{0, 4}});         // {2}+ repeats pairs
  CHECK(spans_of(Regex(R"(^a$)"), "a\nb\na") == Spans{{0, 1}, {4, 5}});  // lines
  CHECK(spans_of(Regex(R"((?i:x)y)"), "XyXY") == Spans{{0, 2}});
  CHECK(spans_of(Regex(R"([^\p{P}\s]++)"), "ab, c") == Spans{{0, 2}, {4, 5}});
  CHECK(spans_of(Regex(R"(\b)"), "a b") == Spans{{0, 0}, {1, 1}, {2, 2}, {3, 3}});
  CHECK(spans_of(Regex(R"(x*)"), "axb") == Spans{{0, 0}, {1, 2}, {3, 3}});
  for (const std::string_view bad : {"(", ")", "[", "[]", "a{1", "*", "\\", "\\p{Greek}", "\\p{", "(?<name>a)", "[[a]]",
                                     "[a&&b]", "[b-a]", "\\k<x>", "\\xFF", "(?=a", "a**", "\\R", "\xFF"}) {
    CAPTURE(bad);
    CHECK(message_of_pattern(bad) != "");
  }
  CHECK(tests::contains(message_of_pattern("ab\\p{Greek}"), "offset 5"));
  const Regex slow("(?:a|a)+$");
  CHECK(tests::contains(tests::message_of<DataError>([&] { spans_of(slow, std::string(40, 'a') + '!'); }),
                        "too many steps"));
}

TEST_CASE("a set of characters has what was added, and its inverse all others, in ascending ranges") {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    CharacterSet set;
    std::vector<bool> expected(kNumCodePoints);
    for (int i = static_cast<int>(random() % 30); i > 0; --i) {
      const bool high = random() % 4 == 0;  // up to the last code point
      const char32_t first = high ? kNumCodePoints - 1 - random() % 9 : random() % 60;
      const char32_t last = std::min<char32_t>(kNumCodePoints - 1, first + random() % 5);
      set.add(first, last);
      std::fill(expected.begin() + first, expected.begin() + last + 1, true);
    }
    for (int inverted = 0; inverted < 2; ++inverted, set.invert(), expected.flip()) {
      std::vector<bool> given(kNumCodePoints);
      char32_t least = 0;  // of the next range: a gap apart
      for (const auto& [first, last] : set.ranges()) {
        REQUIRE(first >= least);
        REQUIRE(first <= last);
        std::fill(given.begin() + first, given.begin() + last + 1, true);
        least = last + 2;
      }
      REQUIRE(given == expected);
    }
  }
}

TEST_CASE("normal forms follow the standard") {
  using Kind = NormalForm::Kind;
  CHECK(normal(Kind::nfc, "e\u0301\u0323") == "\u1EB9\u0301");
  CHECK(normal(Kind::nfd, "\u1EB9\u0301") == "e\u0323\u0301");
  CHECK(normal(Kind::nfc, "\u1112\u1161\u11AB\uD55C\u11A8") == "\uD55C\uD55C\u11A8");
  CHECK(normal(Kind::nfd, "\uAC01") == "\u1100\u1161\u11A8");
  CHECK(normal(Kind::nfkc, "\uFB01\u2460\uFF21") == "fi1A");
  CHECK(normal(Kind::nfkd, "\u1E9B\u0323") == "s\u0323\u0307");
  CHECK(normal(Kind::nfc, "\u0340\u212B a") == "\u0300\u00C5 a");
  CHECK(normal(Kind::nfc, "plain \u65E5\u672C") == "plain \u65E5\u672C");
}

TEST_CASE("bytes that are no UTF-8 become one U+FFFD for each part of a character") {
  CHECK(whole_utf8("a\xE6\x97z") == "a\uFFFDz");
  CHECK(whole_utf8("\xC0\xAF") == "\uFFFD\uFFFD");
  CHECK(whole_utf8("\xF0\x9F\x98") == "\uFFFD");
  CHECK(whole_utf8("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");
  CHECK(whole_utf8("\u00E9") == "\u00E9");
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kMostSeconds = 30;
#else
constexpr double kMostSeconds = 1;
#endif

TEST_CASE("a megabyte of one letter takes a second at most, in every kind of tokenizer") {
  for (const std::string kind : {"gpt2", "llama3", "gpt4o", "deepseek", "cl100k", "llama2", "gemma", "unknown"}) {
    CAPTURE(kind);
    const auto tokenizer =
        TextTokenizer::read(std::string(TRAINER_SOURCE_DIR) + "/tests/goldens/tokenizers/" + kind + ".json");
    for (const std::string_view letter : {"a", " ", "!", "\u0301"}) {
      std::string text;
      while (text.size() < 1'000'000) text += letter;
      const std::clock_t start = std::clock();
      CHECK(tokenizer->encode(text).ids.size() > 1);
      CHECK(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC < kMostSeconds);
    }
  }
}
