// Rewrites a pattern of Oniguruma's Ruby syntax for PCRE2.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "engine/tokenizer/character_set.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/unicode.h"

namespace trainer::tokenizer {
namespace {

/// Of a rewritten pattern: PCRE2's compiled patterns have at most 64 KiB, for which this is more than enough text.
constexpr std::size_t kMostText = std::size_t{1} << 20;

class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : pattern_(pattern) {}

  std::string rewrite() {
    while (at_ < pattern_.size()) {
      item();
      if (out_.size() > kMostText) fail("the pattern has too many classes");
    }
    if (!groups_.empty()) fail("a group without an end");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError("offset " + std::to_string(at_) + " of the pattern: " + what);
  }

  bool accept(std::string_view what) {
    if (!pattern_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }

  char32_t character() {
    if (at_ >= pattern_.size()) fail("the pattern ends where a character is expected");
    const char32_t c = next_code_point(pattern_, at_);
    if (c == kNotUtf8) fail("is not UTF-8");
    return c;
  }

  // One character, group, class or quantifier.
  void item() {
    const char c = pattern_[at_];
    if (c == ')' && !groups_.empty())
      atom_ = groups_.back();
    else if (c != '*' && c != '+' && c != '?' && c != '{')
      atom_ = out_.size();
    if (c == '(') return group();
    if (c == '[') return put_class();
    if (c == '\\') return put_escape();
    if (c == '*' || c == '+' || c == '?' || c == '{') return quantifier();
    if (c == ')') {
      if (groups_.empty()) fail("')' without a group");
      groups_.pop_back();
    }
    if (c == ')' || c == '|' || c == '.' || c == '^') {
      out_ += c;
      ++at_;
      repeatable_ = c == ')' || c == '.';
      return;
    }
    if (c == '$') {  // at every end of a line; PCRE2 would match before a last line break only once
      out_ += "(?=\\n|\\z)";
      ++at_;
      repeatable_ = false;
      return;
    }
    put_literal(character());
    repeatable_ = true;
  }

  void group() {
    static constexpr std::string_view kOpenings[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    for (const std::string_view opening : kOpenings) {
      if (!accept(opening)) continue;
      groups_.push_back(out_.size());
      out_ += opening;
      repeatable_ = false;
      return;
    }
    if (accept("(?i)")) {
      if (!groups_.empty()) fail("(?i) inside a group is not supported: write (?i:…)");
      out_ += "(?i)";
      repeatable_ = false;
      return;
    }
    if (pattern_.substr(at_).starts_with("(?"))
      fail("this kind of group is not supported; (?: (?= (?! (?<= (?<! (?> and (?i: are");
    ++at_;
    groups_.push_back(out_.size());
    out_ += "(?:";
    repeatable_ = false;
  }

  void quantifier() {
    if (!repeatable_) fail("nothing to repeat here");
    repeatable_ = false;
    if (pattern_[at_] != '{') {
      out_ += pattern_[at_++];
      if (at_ < pattern_.size() && (pattern_[at_] == '?' || pattern_[at_] == '+')) out_ += pattern_[at_++];
      return;
    }
    const std::size_t end = pattern_.find('}', at_);
    const std::string_view counts = pattern_.substr(at_ + 1, end == std::string_view::npos ? 0 : end - at_ - 1);
    const std::size_t comma = counts.find(',');
    const std::string_view least = counts.substr(0, comma),
                           most = comma == std::string_view::npos ? least : counts.substr(comma + 1);
    const auto is_count = [](std::string_view text) {
      return text.size() <= 3 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    };
    if (end == std::string_view::npos || !is_count(least) || !is_count(most) || (least.empty() && most.empty()))
      fail("'{' must be written \\{, or begin a count such as {1,3}");
    out_ += "{" + (least.empty() ? "0" : std::string(least)) +
            (comma == std::string_view::npos ? "" : "," + std::string(most)) + "}";
    at_ = end + 1;
    // Of a range '?' makes a lazy one; behind {n}, and '+' behind any count, it repeats what is counted.
    const bool lazy = comma != std::string_view::npos && accept("?");
    if (lazy) out_ += "?";
    if (!lazy && at_ < pattern_.size() && (pattern_[at_] == '+' || pattern_[at_] == '?')) {
      out_.insert(atom_, "(?:");
      out_ += std::string(")") + pattern_[at_++];
    }
    if (at_ < pattern_.size() && std::string_view("*+?{").find(pattern_[at_]) != std::string_view::npos)
      fail("a quantifier behind a count is not supported");
  }

  void put_literal(char32_t c) {
    if (c < 0x80 && std::string_view("\\^$.[]|()?*+{}-#").find(static_cast<char>(c)) != std::string_view::npos)
      out_ += '\\';
    append_utf8(out_, c);
  }

  void put_escape() {
    repeatable_ = true;
    const std::size_t begin = at_;
    set_.clear();
    if (class_escape()) return put_set();
    at_ = begin + 1;
    if (at_ >= pattern_.size()) fail("a backslash at the end");
    const char c = pattern_[at_];
    if (c == 'A' || c == 'z' || c == 'Z' || c == 'G') {
      if (c == 'G') fail("\\G is not supported");
      out_ += c == 'Z' ? "(?=\\n?\\z)" : std::string("\\") + c;
      ++at_;
      repeatable_ = false;
      return;
    }
    if (c == 'b' || c == 'B') {
      ++at_;
      add_word(set_);
      const std::string word = set_text();
      out_ += c == 'b' ? "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))"
                       : "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))";
      repeatable_ = false;
      return;
    }
    at_ = begin;
    put_literal(escaped_character());
  }

  // A backslash and a character that stands for one character.
  char32_t escaped_character() {
    ++at_;
    if (at_ >= pattern_.size()) fail("a backslash at the end");
    const char c = pattern_[at_];
    switch (c) {
      case 'n':
        ++at_;
        return '\n';
      case 'r':
        ++at_;
        return '\r';
      case 't':
        ++at_;
        return '\t';
      case 'f':
        ++at_;
        return '\f';
      case 'v':
        ++at_;
        return '\v';
      case 'a':
        ++at_;
        return '\a';
      case 'e':
        ++at_;
        return 0x1B;
      case 'x':
        return ++at_, hexadecimal(accept("{") ? 0 : 2);
      case 'u':
        return ++at_, hexadecimal(4);
      default:
        break;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
      fail(std::string("\\") + c + " is not supported");
    return character();
  }

  // So many digits; 0: up to '}'.
  char32_t hexadecimal(std::size_t digits) {
    const std::size_t end = digits == 0 ? pattern_.find('}', at_) : at_ + digits;
    if (end == std::string_view::npos || end > pattern_.size() || end == at_ || end - at_ > 6)
      fail("hexadecimal digits are expected");
    char32_t value = 0;
    for (; at_ < end; ++at_) {
      const char c = pattern_[at_];
      const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
      if (digit < 0) fail("hexadecimal digits are expected");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (digits == 0) ++at_;
    if (value >= kNumCodePoints || (value >= 0xD800 && value <= 0xDFFF)) fail("is no character");
    if (digits == 2 && value > 0x7F) fail("\\x above 7F is a byte, not a character: write \\u");
    return value;
  }

  void add_categories(CategorySet categories, bool inverted) {
    for (const Categories::Run& run : Categories::get().runs())
      if ((((categories >> static_cast<int>(run.category)) & 1) != 0) != inverted) set_.add(run.first, run.last);
  }

  static void add_word(CharacterSet& set) {
    for (const Categories::Run& run : Categories::get().runs())
      if (((kWordSet >> static_cast<int>(run.category)) & 1) != 0) set.add(run.first, run.last);
    set.add(more_word_of_patterns());
  }

  // \s \S \d \D \w \W \h \H \p{…} \P{…} : adds its characters to set_.
  bool class_escape() {
    if (!accept("\\")) return false;
    const char c = at_ < pattern_.size() ? pattern_[at_] : '\0';
    switch (c) {
      case 's':
      case 'S':
        ++at_;
        add_categories(kSpace, c == 'S');
        return true;
      case 'd':
      case 'D':
        ++at_;
        add_categories(categories(Category::Nd), c == 'D');
        return true;
      case 'w':
        ++at_;
        add_word(set_);
        return true;
      case 'W': {
        ++at_;
        CharacterSet word;
        add_word(word);
        word.invert();
        set_.add(word.ranges());
        return true;
      }
      case 'h':
      case 'H':
        fail("\\h is not supported");
      case 'p':
      case 'P':
        break;
      default:
        --at_;
        return false;
    }
    ++at_;
    if (!accept("{")) fail("'{' is expected behind \\p");
    const bool inverted = (c == 'P') != accept("^");
    const std::size_t end = std::min(pattern_.find('}', at_), pattern_.size());
    const std::string_view name = pattern_.substr(at_, end - at_);
    const CategorySet named = name == "Han" || name.empty() ? 0 : category_named(name);
    if (named == 0 || end == pattern_.size())
      fail("\\p{" + std::string(name) + "} is not supported; general categories, such as L, Lu, N or P, are");
    at_ = end + 1;
    add_categories(named, inverted);
    return true;
  }

  // […]
  void put_class() {
    ++at_;
    set_.clear();
    const bool inverted = accept("^");
    bool first = true;
    for (;; first = false) {
      if (at_ >= pattern_.size()) fail("a class without an end");
      if (!first && accept("]")) break;
      if (pattern_[at_] == '[' || pattern_.substr(at_).starts_with("&&"))
        fail("a class inside of a class is not supported; write \\[ for the character");
      if (first && pattern_[at_] == ']') fail("an empty class");
      if (class_escape()) {
        if (pattern_.substr(at_).starts_with("-") && !pattern_.substr(at_).starts_with("-]"))
          fail("'-' behind a class: write \\-");
        continue;
      }
      const char32_t low = class_character();
      char32_t high = low;
      if (at_ + 1 < pattern_.size() && pattern_[at_] == '-' && pattern_[at_ + 1] != ']') {
        ++at_;
        if (pattern_[at_] == '[') fail("a range that ends in a class");
        high = class_character();
        if (high < low) fail("a range that ends before it begins");
      }
      set_.add(low, high);
    }
    if (inverted) set_.invert();
    put_set();
    repeatable_ = true;
  }

  char32_t class_character() {
    if (pattern_[at_] != '\\') return character();
    if (pattern_.substr(at_).starts_with("\\b")) return at_ += 2, U'\b';
    return escaped_character();
  }

  void put_set() {
    if (set_.ranges().empty()) fail("a class without a character");
    out_ += set_text();
  }

  // Surrogates are no characters: PCRE2 refuses them.
  std::string set_text() {
    std::string text = "[";
    const auto put = [&](char32_t first, char32_t last) {
      if (first > last) return;
      char hex[32];
      std::snprintf(hex, sizeof hex, first < last ? "\\x{%X}-\\x{%X}" : "\\x{%X}", static_cast<unsigned>(first),
                    static_cast<unsigned>(last));
      text += hex;
    };
    for (const auto& [first, last] : set_.ranges()) {
      put(first, std::min(last, char32_t{0xD7FF}));
      put(std::max(first, char32_t{0xE000}), last);
    }
    return text + "]";
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::size_t atom_ = 0;             // where in out_ what a quantifier repeats begins
  std::vector<std::size_t> groups_;  // where open groups begin there
  bool repeatable_ = false;
  std::string out_;
  CharacterSet set_;  // of the class that is being read
};

}  // namespace

std::string rewritten_pattern(std::string_view pattern) {
  if (pattern.size() > 4096) throw DataError("the pattern is longer than 4096 bytes");
  return Rewriter(pattern).rewrite();
}

}  // namespace trainer::tokenizer
