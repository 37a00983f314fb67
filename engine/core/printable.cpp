// One pass over code points.
#include "engine/core/printable.h"

#include "engine/core/utf8.h"

namespace trainer {
namespace {

// C0, DEL and C1 move the cursor or begin a sequence; the others break a line or reverse how it reads.
bool controls(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

std::string hex(char32_t value, int digits) {
  std::string text;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) text += "0123456789abcdef"[value >> shift & 15];
  return text;
}

std::string escaped(char32_t c) {
  switch (c) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return c < 0x80 ? "\\x" + hex(c, 2) : "\\u" + hex(c, 4);
  }
}

std::string shown(std::string_view text, bool lines) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(text, at);
    if (c == kNotUtf8)
      out += "\\x" + hex(static_cast<unsigned char>(text[at++]), 2);
    else if (controls(c) && !(lines && (c == '\n' || c == '\t')))
      out += escaped(c);
    else
      out += text.substr(begin, at - begin);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return shown(text, false); }
std::string printable_lines(std::string_view text) { return shown(text, true); }

}  // namespace trainer
