// Little-endian integers, and bit-packed numbers: `width` bits each, from the lowest bit of the first byte up
// (parquet-format, Encodings.md, "RLE/Bit-Packing Hybrid").
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "engine/data/parquet/mistakes.h"

namespace trainer::data::parquet {

static_assert(std::endian::native == std::endian::little);

/// The number at the start of `bytes`. REQUIRES: they are long enough.
template <typename Number>
Number number_of(std::string_view bytes) {
  Number number;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

/// Removes the first `count` bytes from `bytes` and returns them. Raises Damaged if there are fewer.
inline std::string_view take_bytes(std::string_view& bytes, std::uint64_t count) {
  if (count > bytes.size()) throw Damaged("a page's values end too early");
  const std::string_view taken = bytes.substr(0, static_cast<std::size_t>(count));
  bytes.remove_prefix(static_cast<std::size_t>(count));
  return taken;
}

inline std::uint32_t take_u32(std::string_view& bytes) { return number_of<std::uint32_t>(take_bytes(bytes, 4)); }

/// Removes an unsigned LEB128 number from the start of `bytes` and returns it.
inline std::uint64_t take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto next = static_cast<std::uint8_t>(take_bytes(bytes, 1)[0]);
    value |= static_cast<std::uint64_t>(next & 0x7F) << shift;
    if (next < 0x80) return value;
  }
  throw Damaged("a page has a number of more than 64 bits");
}

/// The number of `width` bits from bit `at` of `bytes` on. REQUIRES: 0 <= width <= 64, and it lies in the bytes.
inline std::uint64_t bits_at(std::string_view bytes, std::uint64_t at, int width) {
  if (width == 0) return 0;
  const std::size_t first = static_cast<std::size_t>(at / 8), left = bytes.size() - first;
  const int shift = static_cast<int>(at % 8);
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + first, left < 8 ? left : 8);
  word >>= shift;
  if (shift + width > 64)
    word |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(bytes[first + 8])) << (64 - shift);
  return width == 64 ? word : word & ((std::uint64_t{1} << width) - 1);
}

}  // namespace trainer::data::parquet
