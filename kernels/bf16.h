// Bf16: the upper half of an f32, as it lies in memory. Everything here is always inlined, so that sources compiled for
// different instruction sets share no copy of it.
#pragma once

#include <cstdint>

namespace trainer::kernels {

struct Bf16 {
  std::uint16_t bits;
};

[[gnu::always_inline]] constexpr float to_f32(float x) { return x; }
[[gnu::always_inline]] constexpr float to_f32(Bf16 x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
}

/// Round to nearest, ties to even; a NaN stays one (made quiet).
[[gnu::always_inline]] constexpr Bf16 to_bf16(float x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace trainer::kernels
