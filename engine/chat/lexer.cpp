// How a template is split into tokens: text up to the next tag, then the tokens of that tag.
#include "engine/chat/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/chat/text.h"
#include "engine/core/utf8.h"
#include "engine/tokenizer/unicode.h"

namespace trainer::chat {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) root();
    add(Token::Kind::end, at_);
    return std::move(tokens_);
  }

 private:
  // Text to the next tag, and that tag.
  void root() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= text_.size())
        return add_data(text_.substr(at_), at_), void(at_ = text_.size());
      if (text_[tag + 1] == '{' || text_[tag + 1] == '%' || text_[tag + 1] == '#') break;
    }
    const char kind = text_[tag + 1];
    std::size_t after = tag + 2;
    char sign = ' ';
    if (after < text_.size() && (text_[after] == '-' || text_[after] == '+')) sign = text_[after++];
    const std::size_t raw = kind == '%' ? end_of_raw_tag(after) : 0;
    add_data(before_tag(text_.substr(at_, tag - at_), sign, kind == '{'), at_);
    at_ = raw != 0 ? raw : after;
    if (raw != 0) return read_raw(tag);
    if (kind == '#') return skip_comment(tag);
    add(kind == '{' ? Token::Kind::print_begin : Token::Kind::block_begin, tag);
    inside(kind == '{', tag);
  }

  std::string_view before_tag(std::string_view data, char sign, bool print) const {
    if (sign == '-') return data.substr(0, stripped(data, false, true).end);
    if (sign == '+' || print) return data;
    const std::size_t line = data.rfind('\n') + 1;  // 0 where there is none
    if (line == 0 && !line_starts_) return data;
    return stripped(data.substr(line), false, true).end == 0 ? data.substr(0, line) : data;
  }

  std::size_t space_end(std::size_t at) const { return at + stripped(text_.substr(at), true, false).begin; }

  // Behind `raw %}`, with white space behind `-%}`; 0 if that is not what comes.
  std::size_t end_of_raw_tag(std::size_t at) const {
    at = space_end(at);
    if (!text_.substr(at).starts_with("raw")) return 0;
    at = space_end(at + 3);
    if (text_.substr(at).starts_with("-%}")) return space_end(at + 3);
    return text_.substr(at).starts_with("%}") ? at + 2 : 0;
  }

  void read_raw(std::size_t tag) {
    line_starts_ = at_ > 0 && text_[at_ - 1] == '\n';
    for (std::size_t end = text_.find("{%", at_); end != std::string_view::npos; end = text_.find("{%", end + 1)) {
      std::size_t at = end + 2;
      const char sign = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at++] : ' ';
      at = space_end(at);
      if (!text_.substr(at).starts_with("endraw")) continue;
      const std::size_t behind = tag_end(space_end(at + 6), '%');
      if (behind == 0) continue;
      add_data(before_tag(text_.substr(at_, end - at_), sign, false), at_);
      return leave(behind);
    }
    throw SyntaxError("{% raw %} has no {% endraw %}", tag);
  }

  void skip_comment(std::size_t tag) {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) throw SyntaxError("the comment has no end", tag);
    const bool strips = end > at_ && text_[end - 1] == '-', keeps = end > at_ && text_[end - 1] == '+';
    if (strips) return leave(space_end(end + 2));
    leave(!keeps && text_.substr(end + 2).starts_with('\n') ? end + 3 : end + 2);
  }

  // Where the tag that ends at `at` is over, with what is stripped behind it; 0 if it does not end there.
  std::size_t tag_end(std::size_t at, char kind) const {
    const std::string_view rest = text_.substr(at);
    const std::string_view close = kind == '%' ? "%}" : "}}";
    if (rest.starts_with('-') && rest.substr(1).starts_with(close)) return space_end(at + 3);
    if (kind == '%' && rest.starts_with("+%}")) return at + 3;
    if (!rest.starts_with(close)) return 0;
    return kind == '%' && rest.substr(2).starts_with('\n') ? at + 3 : at + 2;
  }

  void leave(std::size_t at) {
    at_ = at;
    line_starts_ = text_[at - 1] == '\n';
  }

  void inside(bool print, std::size_t tag) {
    std::vector<char> open;
    while (true) {
      if (open.empty())
        if (const std::size_t end = tag_end(at_, print ? '}' : '%'); end != 0) {
          add(print ? Token::Kind::print_end : Token::Kind::block_end, at_);
          return leave(end);
        }
      if (at_ >= text_.size()) throw SyntaxError("the tag has no end", tag);
      const std::size_t next = space_end(at_);
      if (next != at_) {
        at_ = next;
        continue;
      }
      const char c = text_[at_];
      if (is_digit(c))
        number();
      else if (c == '\'' || c == '"')
        quoted(c);
      else if (is_word_at(at_))
        name();
      else
        symbol(open);
    }
  }

  bool is_word_at(std::size_t at) const {
    const char c = text_[at];
    if (static_cast<unsigned char>(c) < 0x80)
      return c == '_' || is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return tokenizer::is_word(next_code_point(text_, at));
  }

  void name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_word_at(at_)) next_code_point(text_, at_);
    add(Token::Kind::name, begin, text_.substr(begin, at_ - begin));
  }

  // Digits with single underscores between them.
  std::size_t digits_end(std::size_t at) const {
    while (at < text_.size() &&
           (is_digit(text_[at]) || (text_[at] == '_' && at + 1 < text_.size() && is_digit(text_[at + 1]))))
      ++at;
    return at;
  }

  void number() {
    const std::size_t begin = at_, whole = digits_end(at_);
    std::size_t end = whole;
    const auto digit_at = [&](std::size_t at) { return at < text_.size() && is_digit(text_[at]); };
    const bool member = begin > 0 && text_[begin - 1] == '.';  // of `list.0.1`
    if (!member && end < text_.size() && text_[end] == '.' && digit_at(end + 1)) end = digits_end(end + 1);
    if (!member && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const std::size_t sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
      if (digit_at(end + 1 + sign)) end = digits_end(end + 1 + sign);
    }
    std::string digits(text_.substr(begin, end - begin));
    std::erase(digits, '_');
    if (end == whole && digits == "0" && end < text_.size() &&
        std::string_view("xXoObB").find(text_[end]) != std::string_view::npos)
      throw SyntaxError("numbers of base 2, 8 and 16 are not supported", begin);
    if (end == whole && digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos)
      throw SyntaxError("a whole number does not begin with 0", begin);
    at_ = end;
    Token& token = add(end == whole ? Token::Kind::integer : Token::Kind::real, begin, digits);
    std::from_chars_result result{};
    if (end == whole)
      result = std::from_chars(digits.data(), digits.data() + digits.size(), token.integer);
    else
      result = std::from_chars(digits.data(), digits.data() + digits.size(), token.real);
    if (result.ec != std::errc()) throw SyntaxError("the number is out of range", begin);
  }

  void symbol(std::vector<char>& open) {
    constexpr std::array<std::string_view, 6> kLong{"**", "//", "==", "!=", ">=", "<="};
    constexpr std::string_view kShort = "+-/*%~[](){}><=.:|,;";
    const std::string_view two = text_.substr(at_, 2);
    std::string_view found = std::find(kLong.begin(), kLong.end(), two) != kLong.end() ? two : text_.substr(at_, 1);
    if (found.size() == 1 && kShort.find(found[0]) == std::string_view::npos)
      throw SyntaxError("a character that is not part of the language", at_);
    const char c = found[0];
    if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) throw SyntaxError("unexpected '" + std::string(1, c) + "'", at_);
      open.pop_back();
    }
    add(Token::Kind::symbol, at_, found);
    at_ += found.size();
  }

  void quoted(char quote) {
    const std::size_t begin = at_++;
    std::string out;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\')
        escape(out, begin);
      else
        out += text_[at_++];
    }
    if (at_ >= text_.size()) throw SyntaxError("the string has no end", begin);
    ++at_;
    add(Token::Kind::text, begin, out);
  }

  // As Python's codec unicode-escape, behind which Jinja puts every string.
  void escape(std::string& out, std::size_t string) {
    constexpr std::string_view kNames = "\\'\"abfnrtv", kCharacters = "\\'\"\a\b\f\n\r\t\v";
    if (++at_ >= text_.size()) throw SyntaxError("the string has no end", string);
    const char c = text_[at_];
    if (const std::size_t plain = kNames.find(c); plain != std::string_view::npos)
      return ++at_, void(out += kCharacters[plain]);
    if (c == '\n') return void(++at_);
    if (c == 'x') return ++at_, append(out, digits(2, 16), string);
    if (c == 'u') return ++at_, append(out, digits(4, 16), string);
    if (c == 'U') return ++at_, append(out, digits(8, 16), string);
    if (c >= '0' && c <= '7') {
      char32_t value = 0;
      for (int i = 0; i < 3 && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '7'; ++i)
        value = value * 8 + static_cast<char32_t>(text_[at_++] - '0');
      return append(out, value, string);
    }
    if (c == 'N') throw SyntaxError(R"(the escape \N{…} is not supported)", at_ - 1);
    out += '\\';
    if (static_cast<unsigned char>(c) >= 0x80) throw SyntaxError("an escape of a character that is not ASCII", at_ - 1);
  }

  char32_t digits(std::size_t count, int base) {
    const std::string_view text = text_.substr(at_, count);
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (text.size() < count || error != std::errc() || end != text.data() + count)
      throw SyntaxError("the escape has too few digits", at_);
    at_ += count;
    return value;
  }

  void append(std::string& out, char32_t value, std::size_t string) {
    if (value >= kNumCodePoints || (value >= 0xD800 && value < 0xE000))
      throw SyntaxError("the string has an escape that is no character", string);
    append_utf8(out, value);
  }

  void add_data(std::string_view data, std::size_t at) {
    if (!data.empty()) add(Token::Kind::data, at, data);
  }

  Token& add(Token::Kind kind, std::size_t at, std::string_view text = {}) {
    tokens_.push_back({kind, at, std::string(text)});
    return tokens_.back();
  }

  const std::string_view text_;
  std::size_t at_ = 0;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string normalized_template(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out += text[i];
      continue;
    }
    out += '\n';
    if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

std::vector<Token> tokenize_template(std::string_view text) { return Lexer(text).run(); }

}  // namespace trainer::chat
