// Loops of the choice of the k largest (kernels/cpu/compression/top_k.cpp). The key of a value is the bits of its size,
// |a|: they order as the sizes do, infinity above all numbers and NaN above infinity.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

/// Values and where they stand in the gradient: one after the other from `base` where `index` is null.
struct Candidates {
  float* values = nullptr;
  std::int32_t* index = nullptr;
  std::int64_t base = 0;
  std::int64_t count = 0;
};

/// The values whose key begins with `prefix`: key >> prefix_shift == prefix. Their next digit is (key >> shift) & mask.
struct Digit {
  std::uint32_t prefix = 0;
  int prefix_shift = 31;
  int shift = 20;
  std::uint32_t mask = 2047;
};

struct Pairs {
  std::int32_t* index = nullptr;
  float* value = nullptr;
};

DECLARE_BY_ISA(
    /// The values gradient + residual of 16 elements at every `stride`, of [begin, end); returns how many there are.
    std::int64_t sample_sums(bool bf16, const void* gradient, const float* residual, std::int64_t begin,
                             std::int64_t end, std::int64_t stride, float* values);
    /// residual += gradient over [begin, end), and those with key >= floor (at least 1) to `to` as long as fewer than
    /// `capacity` are there (memory for 16 more is written); returns how many there are.
    std::int64_t add_and_collect(bool bf16, const void* gradient, float* residual, std::int64_t begin, std::int64_t end,
                                 std::int32_t floor, const Candidates& to, std::int64_t capacity);
    /// ++histogram[digit] for each candidate with the prefix.
    void count_digits(const Candidates& from, const Digit& digit, std::uint32_t* histogram);
    /// Hands out the candidates with key > threshold, and the first `ties` of those with key == threshold; residual
    /// becomes 0 there.
    void hand_out(const Candidates& from, std::int32_t threshold, std::int64_t ties, Pairs to, float* residual);
    /// What is not finite becomes 0.
    void clear_not_finite(float* x, std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
