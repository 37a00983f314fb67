// y = x·B of one row x. B lies by columns, that is a weight [n, k] as it lies: each y is a product of two rows, four of
// them at a time; bf16 is widened. The sums of a column are taken in the same order whatever the other columns are.
#include "kernels/cpu/gemm/row_loops.h"

#include "kernels/cpu/gemm/finish.h"
#include "kernels/cpu/runtime/vec_stream.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

using gemm::kStrip;

constexpr int kTogether = 4;  // columns at a time

/// Products of x with kCount neighbouring rows of a weight.
template <int kCount, typename T>
void dot_rows(const float* x, const T* w, std::int64_t ld, std::int64_t k, float* y) {
  F32 sums[kCount][2] = {};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= k; i += 2 * kLanes) {
    const F32 a = load(x + i), b = load(x + i + kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      const T* const row = w + r * ld + i;
      ask_ahead(row);
      if constexpr (2 * kLanes * sizeof(T) > 64) ask_ahead(row + kLanes);
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

/// T: what B holds.
template <typename T>
void strip_of(const gemm::Problem& p, std::int64_t strip, const float* x, float* sums) {
  const std::int64_t first = strip * kStrip, columns = gemm::least(kStrip, p.n - first);
  const T* w = static_cast<const T*>(p.b) + first * p.ldb;
  std::int64_t j = 0;
  for (; j + kTogether <= columns; j += kTogether) dot_rows<kTogether>(x, w + j * p.ldb, p.ldb, p.k, sums + j);
  for (; j < columns; ++j) dot_rows<1>(x, w + j * p.ldb, p.ldb, p.k, sums + j);
}

void widen_row(const Bf16* from, std::int64_t k, float* to) {
  for_each_vector(
      0, k, [&](std::int64_t i, auto ld, auto st) __attribute__((always_inline)) { st(to + i, ld(from + i)); });
}

}  // namespace

void row_part(const gemm::Problem& p, std::int64_t strip, std::int64_t strip_end, unsigned char* scratch) {
  auto* const widened = reinterpret_cast<float*>(scratch);
  if (!p.inputs_are_f32) widen_row(static_cast<const Bf16*>(p.a), p.k, widened);
  alignas(64) float sums[kStrip];
  for (; strip < strip_end; ++strip) {
    if (p.inputs_are_f32) {
      strip_of<float>(p, strip, static_cast<const float*>(p.a), sums);
      finish_rows<float>(p, sums, 0, 1, strip);
    } else {
      strip_of<Bf16>(p, strip, widened, sums);
      finish_rows<Bf16>(p, sums, 0, 1, strip);
    }
  }
  fence();
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
