// Column sums, a few vectors of columns at a time down all the rows.
#include "kernels/cpu/gemm/column_sums.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

using gemm::ColumnSums;

constexpr std::int64_t kRunOfRows = 64;
constexpr int kVectors = 4;

/// The sums of kCount vectors of columns; get(i, v) gives vector v of row i.
template <int kCount, typename Get>
VEC_INLINE void sum_down(std::int64_t rows, Get get, F32 (&total)[kCount]) {
  for (int v = 0; v < kCount; ++v) total[v] = F32{};
  for (std::int64_t first = 0; first < rows; first += kRunOfRows) {
    const std::int64_t last = first + kRunOfRows < rows ? first + kRunOfRows : rows;
    F32 run[kCount]{};
    for (std::int64_t i = first; i < last; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kCount; ++v) run[v] += get(i, v);
    for (int v = 0; v < kCount; ++v) total[v] += run[v];
  }
}

template <typename From, typename To>
void sum_as(const ColumnSums& s, std::int64_t begin, std::int64_t end) {
  const From* from = static_cast<const From*>(s.from);
  To* to = static_cast<To*>(s.to);
  std::int64_t j = begin;
  for (; j + kVectors * kLanes <= end; j += kVectors * kLanes) {
    F32 total[kVectors];
    sum_down<kVectors>(
        s.rows, [&](std::int64_t i, int v) { return load(from + i * s.columns + j + v * kLanes); }, total);
    for (int v = 0; v < kVectors; ++v)
      store(to + j + v * kLanes, s.accumulate ? total[v] + load(to + j + v * kLanes) : total[v]);
  }
  for_each_vector(j, end, [&](std::int64_t at, auto get, auto put) {
    F32 total[1];
    sum_down<1>(
        s.rows, [&](std::int64_t i, int) { return get(from + i * s.columns + at); }, total);
    put(to + at, s.accumulate ? total[0] + get(to + at) : total[0]);
  });
}

}  // namespace

void sum_columns_of(const ColumnSums& s, std::int64_t begin, std::int64_t end) {
  if (s.from_is_f32)
    s.to_is_f32 ? sum_as<float, float>(s, begin, end) : sum_as<float, Bf16>(s, begin, end);
  else
    s.to_is_f32 ? sum_as<Bf16, float>(s, begin, end) : sum_as<Bf16, Bf16>(s, begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
