// y = x·B of one row x. B in f32 by columns, that is a weight [n, k] as it lies: each y is a product of two rows, four
// of them at a time. B in bf16 strips (packed.h): vectors lie along the columns, and each step's pair of bf16 is split
// by a shift and a mask. The sums of a column are taken in the same order whatever the other columns are.
#include "kernels/cpu/gemm/row_loops.h"

#include "kernels/cpu/gemm/finish.h"
#include "kernels/cpu/gemm/packed.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

using gemm::kStrip;

constexpr int kTogether = 4;           // columns at a time
constexpr std::int64_t kAhead = 1024;  // bytes of each column asked for before they are read

/// Products of x with kCount neighbouring rows of a weight.
template <int kCount>
void dot_rows(const float* x, const float* w, std::int64_t ld, std::int64_t k, float* y) {
  F32 sums[kCount][2] = {};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= k; i += 2 * kLanes) {
    const F32 a = load(x + i), b = load(x + i + kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      const float* const row = w + r * ld + i;
      __builtin_prefetch(reinterpret_cast<const char*>(row) + kAhead);
      if constexpr (kLanes == 16) __builtin_prefetch(reinterpret_cast<const char*>(row) + kAhead + 64);
      sums[r][0] = fma(a, load(row), sums[r][0]);
      sums[r][1] = fma(b, load(row + kLanes), sums[r][1]);
    }
  }
  for_each_vector(
      i, k, [&](std::int64_t at, auto get, auto) __attribute__((always_inline)) {
        const F32 a = get(x + at);
#pragma GCC unroll 4
        for (int r = 0; r < kCount; ++r) sums[r][0] = fma(a, get(w + r * ld + at), sums[r][0]);
      });
#pragma GCC unroll 4
  for (int r = 0; r < kCount; ++r) y[r] = sum(sums[r][0] + sums[r][1]);
}

void f32_strip(const gemm::Problem& p, std::int64_t strip, float* sums) {
  const std::int64_t first = strip * kStrip, columns = gemm::least(kStrip, p.n - first);
  const auto* x = static_cast<const float*>(p.a);
  const float* w = static_cast<const float*>(p.b) + first * p.ldb;
  std::int64_t j = 0;
  for (; j + kTogether <= columns; j += kTogether) dot_rows<kTogether>(x, w + j * p.ldb, p.ldb, p.k, sums + j);
  for (; j < columns; ++j) dot_rows<1>(x, w + j * p.ldb, p.ldb, p.k, sums + j);
}

/// x: as f32, padded with zeros to whole pairs.
void bf16_strip(const gemm::Problem& p, std::int64_t strip, const float* x, float* sums) {
  constexpr int kVectors = static_cast<int>(kStrip) / kLanes;
  const auto* words = static_cast<const std::uint32_t*>(p.b) + strip * gemm::packed_strip_words(p.k);
  const std::int64_t pairs = (p.k + 1) / 2;
  F32 even[kVectors] = {}, odd[kVectors] = {};
  for (std::int64_t i = 0; i < pairs; ++i, words += kStrip) {
    const F32 low = splat(x[2 * i]), high = splat(x[2 * i + 1]);
    __builtin_prefetch(reinterpret_cast<const char*>(words) + 2 * kAhead);
    __builtin_prefetch(reinterpret_cast<const char*>(words) + 2 * kAhead + 64);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      U32 both;
      __builtin_memcpy(&both, words + v * kLanes, sizeof both);
      even[v] = fma(low, from_bits((I32)(both << 16)), even[v]);
      odd[v] = fma(high, from_bits((I32)(both & 0xFFFF0000U)), odd[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) store(sums + v * kLanes, even[v] + odd[v]);
}

void widen_row(const Bf16* from, std::int64_t k, float* to) {
  for_each_vector(
      0, k, [&](std::int64_t i, auto ld, auto st) __attribute__((always_inline)) { st(to + i, ld(from + i)); });
  to[k] = 0;
}

}  // namespace

void row_part(const gemm::Problem& p, std::int64_t strip, std::int64_t strip_end, unsigned char* scratch) {
  auto* const x = reinterpret_cast<float*>(scratch);
  if (!p.inputs_are_f32) widen_row(static_cast<const Bf16*>(p.a), p.k, x);
  alignas(64) float sums[kStrip];
  for (; strip < strip_end; ++strip) {
    if (p.inputs_are_f32) {
      f32_strip(p, strip, sums);
      finish_rows<float>(p, sums, 0, 1, strip);
    } else {
      bf16_strip(p, strip, x, sums);
      finish_rows<Bf16>(p, sums, 0, 1, strip);
    }
  }
  fence();
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
