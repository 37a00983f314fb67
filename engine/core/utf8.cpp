// UTF-8.
#include "engine/core/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace trainer {

char32_t next_long_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[at + i]); };
  const std::uint8_t lead = byte(0);
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || at + length > text.size()) return kNotUtf8;
  char32_t code = lead & (0x7F >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return kNotUtf8;
    code = code << 6 | (byte(i) & 0x3F);
  }
  const char32_t least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
  if (code < least || code >= kNumCodePoints || (code >= 0xD800 && code <= 0xDFFF)) return kNotUtf8;
  at += length;
  return code;
}

std::size_t whole_characters(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<std::uint8_t>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t bits) { text += static_cast<char>(bits); };
  const auto tail = [&](int shift) { put(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6), tail(0);
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12), tail(6), tail(0);
  } else {
    put(0xF0 | code_point >> 18), tail(12), tail(6), tail(0);
  }
}

std::string name_of_code_point(char32_t code_point) {
  char text[16];
  std::snprintf(text, sizeof text, "U+%04X", static_cast<unsigned>(code_point));
  return text;
}

}  // namespace trainer
