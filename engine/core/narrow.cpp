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
      for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(static_cast<const _Float16*>(from)[i]);
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
      for (std::int64_t i = 0; i < count; ++i) static_cast<_Float16*>(to)[i] = static_cast<_Float16>(from[i]);
      return;
    default:
      CHECK(false, "not a float that is trained");
  }
}

}  // namespace trainer
