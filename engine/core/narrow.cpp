// Conversions by bits, so that every compiler gives the same values; rounding is to nearest, ties to even.
#include "engine/core/narrow.h"

#include <bit>
#include <cstring>

#include "engine/core/check.h"

namespace trainer {
namespace {

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // a quiet NaN
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

// Of f16: 5 bits of exponent, biased by 15, and 10 of mantissa. By bits, since not every compiler has the type.
constexpr std::uint32_t kExponentShift = 23, kMantissaShift = 13;

float of_f16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16, exponent = half & 0x7C00U;
  std::uint32_t bits = (half & 0x7FFFU) << kMantissaShift;
  bits += (127U - 15U) << kExponentShift;
  if (exponent == 0x7C00U) {
    bits += (128U - 16U) << kExponentShift;  // infinite, or NaN
  } else if (exponent == 0) {  // subnormal: what an f32 of the smallest exponent has above its leading one
    bits += 1U << kExponentShift;
    bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) - std::bit_cast<float>(113U << kExponentShift));
  }
  return std::bit_cast<float>(bits | sign);
}

std::uint16_t to_f16(float value) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  bits &= 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (bits > 0x7F800000U) {
    half = 0x7E00U | ((bits >> kMantissaShift) & 0x3FFU);  // a quiet NaN
  } else if (bits >= 0x47800000U) {
    half = 0x7C00U;
  } else if (bits < 0x38800000U) {  // subnormal: an addition rounds to its last place
    constexpr std::uint32_t kLast = 126U << kExponentShift;
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) + std::bit_cast<float>(kLast)) - kLast;
  } else {
    const std::uint32_t odd = (bits >> kMantissaShift) & 1U;
    half = (bits - ((127U - 15U) << kExponentShift) + 0xFFFU + odd) >> kMantissaShift;
  }
  return static_cast<std::uint16_t>(half | sign);
}

}  // namespace

void to_f32(DType dtype, const void* from, std::int64_t count, float* to) {
  switch (dtype) {
    case DType::f32:
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case DType::f64:
      for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(static_cast<const double*>(from)[i]);
      return;
    case DType::bf16:
      for (std::int64_t i = 0; i < count; ++i)
        to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(from)[i]) << 16);
      return;
    case DType::f16:
      for (std::int64_t i = 0; i < count; ++i) to[i] = of_f16(static_cast<const std::uint16_t*>(from)[i]);
      return;
    default:
      CHECK(false, "not a float");
  }
}

void from_f32(const float* from, std::int64_t count, DType dtype, void* to) {
  switch (dtype) {
    case DType::f32:
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case DType::bf16:
      for (std::int64_t i = 0; i < count; ++i) static_cast<std::uint16_t*>(to)[i] = to_bf16(from[i]);
      return;
    case DType::f16:
      for (std::int64_t i = 0; i < count; ++i) static_cast<std::uint16_t*>(to)[i] = to_f16(from[i]);
      return;
    default:
      CHECK(false, "not a float that is trained");
  }
}

}  // namespace trainer
