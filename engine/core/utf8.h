// UTF-8, strictly as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trainer {

inline constexpr char32_t kNumCodePoints = 0x110000;
inline constexpr char32_t kNotUtf8 = 0xFFFFFFFF;

/// next_code_point of a first byte that is not ASCII.
char32_t next_long_code_point(std::string_view text, std::size_t& at);

/// The code point at `at`, which moves behind it; kNotUtf8, without moving, if there is none. REQUIRES: at <
/// text.size().
inline char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  return lead < 0x80 ? (++at, lead) : next_long_code_point(text, at);
}

/// The length of `text` without a last character of which only the first bytes are there.
std::size_t whole_characters(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

/// As `U+00E9`.
std::string name_of_code_point(char32_t code_point);

}  // namespace trainer
