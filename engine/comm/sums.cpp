// A chunk that stays in the first cache is summed over all inputs, then written to every output.
#include "engine/comm/sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "engine/core/check.h"

namespace trainer {
namespace {

constexpr std::int64_t kChunk = 2048;  // elements

float to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // a NaN stays one
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

template <typename T>
void sum_chunk(std::span<const void* const> inputs, std::int64_t first, std::int64_t count, T* sum) {
  std::memcpy(sum, static_cast<const T*>(inputs[0]) + first, static_cast<std::size_t>(count) * sizeof(T));
  for (std::size_t member = 1; member < inputs.size(); ++member) {
    const T* other = static_cast<const T*>(inputs[member]) + first;
    for (std::int64_t i = 0; i < count; ++i) sum[i] += other[i];
  }
}

template <>
void sum_chunk<std::uint16_t>(std::span<const void* const> inputs, std::int64_t first, std::int64_t count,
                              std::uint16_t* sum) {
  std::array<float, kChunk> wide{};
  for (const void* input : inputs) {
    const std::uint16_t* other = static_cast<const std::uint16_t*>(input) + first;
    for (std::int64_t i = 0; i < count; ++i) wide[static_cast<std::size_t>(i)] += to_float(other[i]);
  }
  for (std::int64_t i = 0; i < count; ++i) sum[i] = to_bf16(wide[static_cast<std::size_t>(i)]);
}

template <typename T>
void sum_all(std::span<const void* const> inputs, std::int64_t first, std::int64_t last, std::span<void* const> outputs,
             std::int64_t output_first) {
  std::array<T, kChunk> sum;
  for (std::int64_t at = first; at < last; at += kChunk) {
    const std::int64_t count = std::min(kChunk, last - at);
    sum_chunk<T>(inputs, at, count, sum.data());
    for (void* output : outputs)
      std::memcpy(static_cast<T*>(output) + output_first + (at - first), sum.data(),
                  static_cast<std::size_t>(count) * sizeof(T));
  }
}

}  // namespace

void sum_in_rank_order(DType dtype, std::span<const void* const> inputs, std::int64_t first, std::int64_t last,
                       std::span<void* const> outputs, std::int64_t output_first) {
  switch (dtype) {
    case DType::f32:
      return sum_all<float>(inputs, first, last, outputs, output_first);
    case DType::f64:
      return sum_all<double>(inputs, first, last, outputs, output_first);
    case DType::bf16:
      return sum_all<std::uint16_t>(inputs, first, last, outputs, output_first);
    default:
      CHECK(false, "no sum over ranks in " + std::string(name_of(dtype)));
  }
}

std::pair<std::int64_t, std::int64_t> slice_of(std::int64_t elements, std::int64_t index, std::int64_t members) {
  const std::int64_t length = (elements + members - 1) / members;
  return {std::min(elements, length * index), std::min(elements, length * (index + 1))};
}

}  // namespace trainer
