// Case, character by character, by the tables of tools/unicode/make_case_tables.py. A sigma at the end of a word is the
// one mapping that its neighbours decide.
#include <algorithm>
#include <span>
#include <unordered_map>

#include "engine/chat/python_text.h"
#include "engine/core/utf8.h"
#include "engine/tokenizer/unicode.h"

namespace trainer::chat {
namespace {

#include "engine/chat/case_tables.inc"

using Mapping = std::unordered_map<char32_t, std::span<const char32_t>>;

Mapping read(std::span<const char32_t> table) {
  Mapping out;
  for (std::size_t at = 0; at < table.size(); at += 2 + table[at + 1])
    out.emplace(table[at], table.subspan(at + 2, table[at + 1]));
  return out;
}

void put(std::string& out, char32_t character, const Mapping& mapping, bool upper) {
  if (character < 0x80) {
    const bool changes = upper ? character >= 'a' && character <= 'z' : character >= 'A' && character <= 'Z';
    out += static_cast<char>(changes ? character ^ 0x20 : character);
    return;
  }
  const auto found = mapping.find(character);
  if (found == mapping.end()) return append_utf8(out, character);
  for (const char32_t each : found->second) append_utf8(out, each);
}

bool is_cased(char32_t c) {
  using tokenizer::Category;
  return tokenizer::Categories::get().is(c, tokenizer::categories(Category::Ll, Category::Lu, Category::Lt));
}

/// Behind a cased character, and none after it: as str.lower asks for a capital sigma.
bool ends_word(const std::string& text, std::size_t begin, std::size_t end) {
  using tokenizer::Category;
  const auto ignorable = [](char32_t c) {
    constexpr auto kIgnored =
        tokenizer::categories(Category::Mn, Category::Me, Category::Cf, Category::Lm, Category::Sk);
    return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2019 ||
           tokenizer::Categories::get().is(c, kIgnored);
  };
  bool before = false;
  for (std::size_t at = begin; at > 0;) {
    at = before_character(text, at);
    std::size_t next = at;
    const char32_t c = next_code_point(text, next);
    if (ignorable(c)) continue;
    before = is_cased(c);
    break;
  }
  if (!before) return false;
  for (std::size_t at = end; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (!ignorable(c)) return !is_cased(c);
  }
  return true;
}

}  // namespace

Text with_case(const Text& text, Case wanted) {
  static const Mapping upper = read(kUpper), lower = read(kLower), title = read(kTitle);
  constexpr char32_t kSigma = 0x3A3, kFinalSigma = 0x3C2;
  constexpr std::string_view kBeforeWord = "-({[<";
  Text out;
  out.html = text.html;
  bool first = true;  // of a word, or of the text
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(text.bytes(), at);
    if (c == kNotUtf8) throw TemplateError("text that is not UTF-8");
    std::string one;
    const bool raise = wanted == Case::upper || (wanted != Case::lower && first);
    if (raise && (wanted == Case::title || wanted == Case::capitalize) && title.contains(c))
      put(one, c, title, true);
    else if (raise)
      put(one, c, upper, true);
    else if (c == kSigma && ends_word(text.bytes(), begin, at))
      append_utf8(one, kFinalSigma);
    else
      put(one, c, lower, false);
    out.append(one, text.origin(begin));
    if (wanted == Case::title)
      first = !is_cased(c);
    else if (wanted == Case::title_of_jinja)
      first = is_python_space(c) || (c < 0x80 && kBeforeWord.find(static_cast<char>(c)) != std::string_view::npos);
    else
      first = false;
  }
  return out;
}

}  // namespace trainer::chat
