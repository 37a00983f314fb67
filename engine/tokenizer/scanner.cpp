// Each scanner is the alternatives of its pattern in their order. Comments give the part of the pattern; where a greedy
// part must give back characters, the end of the match is found directly.
#include "engine/tokenizer/scanner.h"

#include <string>

#include "engine/tokenizer/text.h"
#include "engine/tokenizer/unicode.h"

namespace trainer::tokenizer {
namespace {

constexpr CategorySet kAll = ~CategorySet{0};
constexpr CategorySet kUpperLike = categories(Category::Lu, Category::Lt, Category::Lm, Category::Lo) | kMark;
constexpr CategorySet kLowerLike = categories(Category::Ll, Category::Lm, Category::Lo) | kMark;
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

class Text {
 public:
  Text(std::string_view text) : text_(text), categories_(Categories::get()) {}  // NOLINT

  std::size_t size() const { return text_.size(); }
  char byte(std::size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  /// The end of the character at `at` if it is in the set, else kNone.
  std::size_t one(std::size_t at, CategorySet set) const {
    if (at >= text_.size()) return kNone;
    std::size_t next = at;
    return categories_.is(decode_next(text_, next), set) ? next : kNone;
  }
  /// The end of the longest run of such characters from `at` on.
  std::size_t run(std::size_t at, CategorySet set) const {
    while (at < text_.size()) {
      std::size_t next = at;
      if (!categories_.is(decode_next(text_, next), set)) break;
      at = next;
    }
    return at;
  }
  std::size_t run_of(std::size_t at, std::string_view bytes) const {
    while (at < text_.size() && bytes.find(text_[at]) != std::string_view::npos) ++at;
    return at;
  }
  /// The beginning of the last character before `at` that is in the set, not before `from`; else kNone.
  std::size_t last(std::size_t from, std::size_t at, CategorySet set) const {
    while (at > from) {
      do --at;
      while ((static_cast<unsigned char>(text_[at]) & 0xC0) == 0x80);
      if (one(at, set) != kNone) return at;
    }
    return kNone;
  }
  std::size_t after(std::size_t at) const {
    decode_next(text_, at);
    return at;
  }

 private:
  std::string_view text_;
  const Categories& categories_;
};

// 's|'t|'re|'ve|'m|'ll|'d at `at`, or kNone. Without regard to case U+017F counts as s.
template <bool any_case>
std::size_t contraction(const Text& text, std::size_t at) {
  if (text.byte(at) != '\'') return kNone;
  const auto lower = [&](std::size_t i) {
    const char c = text.byte(i);
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = lower(at + 1), second = lower(at + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return at + 3;
  if (any_case && first == '\xC5' && text.byte(at + 2) == '\xBF') return at + 3;
  return kNone;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ , the first part where `lines`.
template <bool lines>
std::size_t white(const Text& text, std::size_t at) {
  std::size_t end = at, last_begin = at, line_end = 0;
  for (std::size_t next; (next = text.one(end, kSpace)) != kNone; end = next) {
    last_begin = end;
    if (text.byte(end) == '\n' || text.byte(end) == '\r') line_end = next;
  }
  if (end == at) return kNone;
  if (lines && line_end != 0) return line_end;
  return end == text.size() || last_begin == at ? end : last_begin;
}

// ' ?' before characters of a set, then any of `tail`.
std::size_t marks(const Text& text, std::size_t at, CategorySet set, std::string_view tail) {
  const std::size_t begin = text.byte(at) == ' ' ? at + 1 : at;
  const std::size_t end = text.run(begin, set);
  return end == begin ? kNone : text.run_of(end, tail);
}

// [^\r\n\p{L}\p{N}]? and the like before a run of letters. `lead`: the categories that the first character may have.
std::size_t word(const Text& text, std::size_t at, CategorySet lead, CategorySet letters) {
  const std::size_t end = text.run(at, letters);
  if (end != at) return end;
  const std::size_t begin = text.byte(at) == '\r' || text.byte(at) == '\n' ? kNone : text.one(at, lead);
  if (begin == kNone) return kNone;
  const std::size_t led_end = text.run(begin, letters);
  return led_end == begin ? kNone : led_end;
}

std::size_t digits(const Text& text, std::size_t at, int most) {
  std::size_t end = at;
  for (int i = 0; i < most; ++i) {
    const std::size_t next = text.one(end, kNumber);
    if (next == kNone) break;
    end = next;
  }
  return end == at ? kNone : end;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
Match gpt2(std::string_view all, std::size_t at) {
  const Text text(all);
  std::size_t end = contraction<false>(text, at);
  if (end == kNone) end = marks(text, at, kLetter, "");
  if (end == kNone) end = marks(text, at, kNumber, "");
  if (end == kNone) end = marks(text, at, kAll & ~(kSpace | kLetter | kNumber), "");
  if (end == kNone) end = white<false>(text, at);
  return {end};
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// Qwen 2 has \p{N} for \p{N}{1,3}; Qwen 3.5 also has marks among the letters.
template <int most_digits, CategorySet letters>
Match llama3(std::string_view all, std::size_t at) {
  const Text text(all);
  std::size_t end = contraction<true>(text, at);
  if (end == kNone) end = word(text, at, kAll & ~(kLetter | kNumber), letters);
  if (end == kNone) end = digits(text, at, most_digits);
  if (end == kNone) end = marks(text, at, kAll & ~(kSpace | letters | kNumber), "\r\n");
  if (end == kNone) end = white<true>(text, at);
  return {end};
}

// lead?[upper]*[lower]+ , then lead?[upper]+[lower]* , where lead is [^\r\n\p{L}\p{N}], upper
// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and lower
// [\p{Ll}\p{Lm}\p{Lo}\p{M}].
std::size_t cased_word(const Text& text, std::size_t at) {
  const auto from = [&](std::size_t begin) -> std::size_t {  // [upper]*[lower]+
    const std::size_t upper_end = text.run(begin, kUpperLike), lower_end = text.run(upper_end, kLowerLike);
    if (lower_end != upper_end) return lower_end;
    const std::size_t given_back = text.last(begin, upper_end, kLowerLike);
    return given_back == kNone ? kNone : text.after(given_back);
  };
  const std::size_t led =
      text.byte(at) == '\r' || text.byte(at) == '\n' ? kNone : text.one(at, kAll & ~(kLetter | kNumber));
  std::size_t end = led == kNone ? kNone : from(led);
  if (end == kNone) end = from(at);
  if (end != kNone) return end;
  for (const std::size_t begin : {led, at}) {
    if (begin == kNone) continue;
    const std::size_t upper_end = text.run(begin, kUpperLike);
    if (upper_end != begin) return upper_end;
  }
  return kNone;
}

// GPT-4o: both kinds of word, each with (?i:'s|'t|'re|'ve|'m|'ll|'d)? , \p{N}{1,3} and [\r\n/]*. Tekken: without
// contractions, \p{N}.
template <bool contractions, int most_digits>
Match cased(std::string_view all, std::size_t at) {
  const Text text(all);
  std::size_t end = cased_word(text, at);
  if (end != kNone && contractions) {
    const std::size_t more = contraction<true>(text, end);
    if (more != kNone) end = more;
  }
  if (end == kNone) end = digits(text, at, most_digits);
  if (end == kNone) end = marks(text, at, kAll & ~(kSpace | kLetter | kNumber), "\r\n/");
  if (end == kNone) end = white<true>(text, at);
  return {end};
}

// What `find` finds at `at`, or the part before the first place where it finds something.
template <typename Find>
Match or_gap(const Text& text, std::size_t at, Find&& find) {
  const std::size_t end = find(at);
  if (end != kNone) return {end};
  do at = text.after(at);
  while (at < text.size() && find(at) == kNone);
  return {at, false};
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_ascii_mark(char c) { return c > ' ' && c < '\x7F' && !is_letter(c) && !(c >= '0' && c <= '9'); }

// DeepSeek V3's third: [!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
// ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
Match deepseek_words(std::string_view all, std::size_t from) {
  const Text text(all);
  return or_gap(text, from, [&](std::size_t at) {
    if (is_ascii_mark(text.byte(at)) && is_letter(text.byte(at + 1))) {
      std::size_t end = at + 2;
      while (is_letter(text.byte(end))) ++end;
      return end;
    }
    std::size_t end = word(text, at, kAll & ~(kLetter | kPunctuationSet | kSymbol), kLetter | kMark);
    if (end == kNone) end = marks(text, at, kPunctuationSet | kSymbol, "\r\n");
    if (end == kNone) end = white<true>(text, at);
    return end;
  });
}

// \p{N}{1,most}
template <int most>
Match numbers(std::string_view all, std::size_t from) {
  const Text text(all);
  return or_gap(text, from, [&](std::size_t at) { return digits(text, at, most); });
}

// [一-龥぀-ゟ゠-ヿ]+
Match han_and_kana(std::string_view all, std::size_t from) {
  const Text text(all);
  return or_gap(text, from, [&](std::size_t at) {
    std::size_t end = at;
    while (end < all.size()) {
      std::size_t next = end;
      const char32_t c = decode_next(all, next);
      if (!((c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF))) break;
      end = next;
    }
    return end == at ? kNone : end;
  });
}

struct Known {
  std::string_view name, pattern;
  Scanner scanner;
};

#define TRAINER_CASED R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
#define TRAINER_CAPITALS R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
#define TRAINER_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"

constexpr Known kKnown[] = {
    {"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", gpt2},
    {"", R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", gpt2},
    {"llama3",
     TRAINER_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     llama3<3, kLetter>},
    {"qwen2",
     TRAINER_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     llama3<1, kLetter>},
    {"qwen3.5",
     TRAINER_CONTRACTIONS
     R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     llama3<1, kLetter | kMark>},
    {"tekken", TRAINER_CASED "|" TRAINER_CAPITALS R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cased<false, 1>},
    {"gpt4o",
     TRAINER_CASED TRAINER_CONTRACTIONS "?|" TRAINER_CAPITALS TRAINER_CONTRACTIONS
                                        R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cased<true, 3>},
    {"", R"(\p{N}{1,3})", numbers<3>},
    {"", R"(\p{N})", numbers<1>},
    {"", "[一-龥\u3040-ゟ゠-ヿ]+", han_and_kana},
    {"",
     R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     deepseek_words},
};

}  // namespace

Scanner scanner_of(std::string_view pattern) {
  std::string escaped;  // DeepSeek's file has line breaks as they are, where others write \r and \n
  for (const char c : pattern)
    if (c == '\r' || c == '\n')
      escaped += c == '\r' ? "\\r" : "\\n";
    else
      escaped += c;
  for (const Known& each : kKnown)
    if (each.pattern == escaped) return each.scanner;
  return nullptr;
}

bool cuts_before_spaces(Scanner scanner) {
  return scanner && scanner != Scanner(numbers<1>) && scanner != Scanner(numbers<3>) &&
         scanner != Scanner(han_and_kana);
}

Scanner gpt2_scanner() { return gpt2; }

std::string_view pattern_named(std::string_view name) {
  for (const Known& each : kKnown)
    if (!name.empty() && each.name == name) return each.pattern;
  return {};
}

}  // namespace trainer::tokenizer
