// How optimizers keep their states in fewer bits than f32: the 8-bit code of a block of elements with a scale, and the
// stochastic rounding to bf16. One place for the kernels of all devices. Everything here is constexpr and free of the
// standard library, so that loops files and device code may include it.
//
// int8 is the dynamic tree code of Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022,
// section 2.1 and appendix. A block of 256 elements (kInt8Block) has a scale, its element farthest from 0 (with its
// sign, and of two that differ in sign alone the positive one; here we differ from the paper, which takes max |x|).
// A byte stands for a number in [−1, 1] times the scale, or in [0, 1] for second moments, which have no sign. A byte
// is, from its top bit: the sign (only in the signed code), e zeros, a one, and f bits that number equal intervals of
// 10⁻ᵉ · [0.1, 1]. It stands for the middle of its interval:
//
//   value = ± 10⁻ᵉ · (0.1 + 0.9 · (fraction + ½) / 2ᶠ)     signed f = 6 − e, unsigned f = 7 − e; e from 0 to 6
//
// Kernels compute it to within 2⁻²⁰. The byte 0 is 0. One byte is left, and means 1: signed 0x80 (minus zero),
// unsigned 0x01. So a block's element farthest from 0 is kept as it is, and the values of a block become the same codes
// with the same scale again: checkpoints hold values, and a run that resumes has the states of one that did not stop.
//
// Error: the code nearest to x / scale is taken, so with 10⁻⁽ᵉ⁺¹⁾ < |x / scale| ≤ 10⁻ᵉ it is at most 0.45 · 10⁻ᵉ · 2⁻ᶠ
// · |scale|: of the largest elements 0.7% signed and 0.35% unsigned. Below 2.75e-7 · |scale| signed numbers become 0.
// Unsigned ones become the least code, 3.25e-7 · scale, unless they are 0 (here we differ from the paper): a second
// moment that is lost while the first is not would make the next update larger by 1 / √(1 − β₂), 30 times with β₂ =
// 0.999. A block of zeros, or one whose scale is no normal f32, becomes zeros with the scale 0; a scale is at most
// 2¹²⁶, the largest whose inverse is a normal f32.
//
// bf16 is rounded stochastically: x between two bf16 numbers becomes the upper one with the probability by which it is
// nearer to that, so the expected value is x. Nearest rounding would not do: with β₂ = 0.999 a second moment loses 2⁻¹⁰
// of itself in a step, less than half a step of bf16 (2⁻⁹), and would never decay. The random bits are a hash of x's
// bits and the number of the step, so a result depends on neither the layout nor the number of threads. A number that
// bf16 has stays as it is.
#pragma once

#include <cstdint>

namespace trainer::kernels {

// ---- int8 ----

/// What converts between magnitudes and bytes. A decade j = 7 − e has the magnitudes 10⁻ᵉ · [0.1, 1]; decade 0 is the
/// zero. A byte without its sign is x = 2ᶠ + fraction, so the middle of its interval is at x + ½, whose binary exponent
/// shows f, and with it the decade.
struct DynamicCode {
  static constexpr int kDecades = 8, kBinades = 32;

  bool has_sign = false;
  std::uint8_t one = 0;  ///< the byte that means 1
  /// Byte to magnitude: value_slope[i] · (x + ½) + value_offset[i], where i is the exponent of x + ½ as a float, its
  /// lower 4 bits. Of the signed code the lower 3 bits suffice; of the unsigned one x = 0 alone is like another then.
  /// Signed, `one` is like 0.
  float value_slope[16] = {}, value_offset[16] = {};
  /// Magnitude to byte: x is the whole part of min(byte_slope[j] · magnitude + byte_offset[j], byte_last[j]).
  float byte_slope[kDecades] = {}, byte_offset[kDecades] = {}, byte_last[kDecades] = {};
  /// The smallest magnitude that is coded in decade j: halfway to the largest of the decade below.
  float least[kDecades] = {};
  float least_one = 0;  ///< the smallest that becomes 1
  /// The same by the binary exponent of a magnitude, its lower 5 bits, for 0 and from 2⁻²⁴ to 1, where no binade has
  /// two of the bounds `least`: a float that is the bound, or one that nothing reaches, but for its lowest 4 bits,
  /// which are the decade below it.
  std::uint32_t bound[kBinades] = {};
};

constexpr DynamicCode make_dynamic_code(bool has_sign) {
  constexpr double kPowers[DynamicCode::kDecades] = {0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};  // 10⁻ᵉ
  DynamicCode code;
  code.has_sign = has_sign;
  code.one = has_sign ? 0x80 : 0x01;
  if (!has_sign) code.value_offset[127 & 15] = 1;  // x = 1
  double levels = has_sign ? 1 : 2;                // 2ᶠ
  int exponent = has_sign ? 127 : 128;             // of x + ½
  double below = 0;                                // the largest value of the decade below
  for (int j = 1; j < DynamicCode::kDecades; ++j, levels *= 2, ++exponent) {
    const double power = kPowers[j];
    code.value_slope[exponent & 15] = static_cast<float>(0.9 * power / levels);
    code.value_offset[exponent & 15] = static_cast<float>(-0.8 * power);
    code.byte_slope[j] = static_cast<float>(levels / (0.9 * power));
    code.byte_offset[j] = static_cast<float>(levels * (1 - 1.0 / 9));
    code.byte_last[j] = static_cast<float>(2 * levels - 0.5);
    code.least[j] = static_cast<float>((below + power * (0.1 + 0.45 / levels)) / 2);
    below = power * (1 - 0.45 / levels);
  }
  code.least_one = static_cast<float>((below + 1) / 2);
  for (std::uint32_t& bound : code.bound) bound = __builtin_bit_cast(std::uint32_t, 0x1p127f);
  int decade = 0;
  for (int binade = 127 - 24; binade <= 127; ++binade) {
    const bool has_bound = decade + 1 < DynamicCode::kDecades &&
                           static_cast<int>(__builtin_bit_cast(std::uint32_t, code.least[decade + 1]) >> 23) == binade;
    const float bound = has_bound ? code.least[decade + 1] : 0x1p127f;
    code.bound[binade & 31] = (__builtin_bit_cast(std::uint32_t, bound) & ~15u) | static_cast<std::uint32_t>(decade);
    decade += has_bound;
  }
  return code;
}

inline constexpr DynamicCode kSignedCode = make_dynamic_code(true), kUnsignedCode = make_dynamic_code(false);

/// The least magnitude of a scale that is not taken for 0, and the largest one.
inline constexpr float kLeastScale = 0x1p-126f, kLargestScale = 0x1p126f;

// ---- bf16 ----

/// A hash of 32 bits, one to one: the last mix of MurmurHash3 (Appleby) but for its last step, which leaves the upper
/// 16 bits as they are.
template <typename U>
[[gnu::always_inline]] constexpr U mixed(U x) {
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  return x;
}

/// What the hash of a step's values begins with. `state`: which of an optimizer's states it is, from 0.
[[gnu::always_inline]] constexpr std::uint32_t rounding_key(std::int32_t applied, int state) {
  const std::uint32_t key =
      mixed(static_cast<std::uint32_t>(applied) * 2u + static_cast<std::uint32_t>(state) + 0x9E3779B9u);
  return key ^ key >> 16;
}

/// Bits of an f32 x whose upper half is x rounded to bf16. U: 32 bits, or a vector of them.
template <typename U>
[[gnu::always_inline]] constexpr U rounded_stochastically(U bits, std::uint32_t key) {
  return bits + (mixed(bits ^ key) >> 16);
}

}  // namespace trainer::kernels
