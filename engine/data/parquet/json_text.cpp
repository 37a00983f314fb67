// Strings are appended in stretches without escapes, which are found eight bytes at a time.
#include "engine/data/parquet/json_text.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#include "engine/core/utf8.h"
#include "engine/data/parquet/mistakes.h"

namespace trainer::data::parquet {
namespace {

constexpr std::uint64_t kOnes = 0x0101010101010101, kHighBits = 0x8080808080808080;

// The high bit of each byte that is zero; bits above the first such byte may be wrong.
constexpr std::uint64_t zeros(std::uint64_t word) { return (word - kOnes) & ~word & kHighBits; }

// The length of the longest prefix that is ASCII and needs no escape.
std::size_t plain_length(const char* text, std::size_t bytes) {
  static_assert(std::endian::native == std::endian::little);
  std::size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    std::uint64_t word;
    std::memcpy(&word, text + at, 8);
    const std::uint64_t control = (word - 0x20 * kOnes) & ~word & kHighBits;
    const std::uint64_t special = control | zeros(word ^ kOnes * '"') | zeros(word ^ kOnes * '\\') | (word & kHighBits);
    if (special != 0) return at + static_cast<std::size_t>(std::countr_zero(special)) / 8;
  }
  for (; at < bytes; ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x20 || byte == '"' || byte == '\\' || byte >= 0x80) break;
  }
  return at;
}

void append_hex(std::string& out, char byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += kDigits[static_cast<unsigned char>(byte) >> 4];
  out += kDigits[static_cast<unsigned char>(byte) & 15];
}

void append_escape(std::string& out, char byte) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  out += '\\';
  if (const std::size_t which = kEscaped.find(byte); which != std::string_view::npos) {
    out += kLetters[which];
  } else {
    out += "u00";
    append_hex(out, byte);
  }
}

template <typename Number>
void append_number(std::string& out, Number value) {
  std::array<char, 40> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  out.append(text.data(), end);
}

template <typename Float>
void append_finite(std::string& out, Float value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  const std::size_t start = out.size();
  append_number(out, value);
  if (std::string_view(out).substr(start).find_first_of(".e") == std::string_view::npos) out += ".0";
}

void append_scaled(std::string& out, __int128 value, std::int32_t scale) {
  const auto places = static_cast<std::size_t>(scale);
  auto rest = static_cast<unsigned __int128>(value);
  if (value < 0) {
    out += '-';
    rest = 0 - rest;
  }
  std::string digits;  // the last one first
  for (; rest > 0 || digits.size() <= places; rest /= 10)
    digits += static_cast<char>('0' + static_cast<int>(rest % 10));
  if (places > 0) digits.insert(places, 1, '.');
  out.append(digits.rbegin(), digits.rend());
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t at = 0;;) {
    std::size_t end = at;  // of the stretch that needs no escape
    for (;;) {
      end += plain_length(text.data() + end, text.size() - end);
      if (end == text.size() || static_cast<unsigned char>(text[end]) < 0x80) break;
      while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80)
        if (next_code_point(text, end) == kNotUtf8) throw Unsupported("holds bytes that are not UTF-8 text");
    }
    out.append(text, at, end - at);
    if (end == text.size()) break;
    append_escape(out, text[end]);
    at = end + 1;
  }
  out += '"';
}

void append_integer(std::string& out, std::int64_t value) { append_number(out, value); }
void append_unsigned(std::string& out, std::uint64_t value) { append_number(out, value); }
void append_float(std::string& out, float value) { append_finite(out, value); }
void append_float(std::string& out, double value) { append_finite(out, value); }
void append_decimal(std::string& out, __int128 value, std::int32_t scale) { append_scaled(out, value, scale); }

void append_decimal(std::string& out, std::string_view big_endian, std::int32_t scale) {
  unsigned __int128 value = !big_endian.empty() && (big_endian[0] & 0x80) != 0 ? ~static_cast<unsigned __int128>(0) : 0;
  for (const char byte : big_endian) value = value << 8 | static_cast<unsigned char>(byte);
  append_scaled(out, static_cast<__int128>(value), scale);
}

void append_uuid(std::string& out, std::string_view bytes) {
  out += '"';
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    append_hex(out, bytes[i]);
  }
  out += '"';
}

}  // namespace trainer::data::parquet
