// Column sums: rows are read from end to end, some at a time, and added to sums that stay in L1.
#include "kernels/cpu/gemm/column_sums.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

using gemm::ColumnSums;

constexpr std::int64_t kRunOfRows = 64;
constexpr std::int64_t kTogether = 4;  // rows
constexpr std::int64_t kGroup = 1024;  // columns

/// sums[j] += from[0][j] + … + from[kRows - 1][j], one after the other.
template <int kRows, typename From>
VEC_INLINE void add_rows(const From* from, std::int64_t stride, std::int64_t columns, float* sums) {
  for_each_vector(
      0, columns, [&](std::int64_t j, auto get, auto put) __attribute__((always_inline)) {
        F32 sum = get(sums + j);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) sum += get(from + i * stride + j);
        put(sums + j, sum);
      });
}

void clear(float* sums, std::int64_t columns) {
  for_each_vector(0, columns, [&](std::int64_t j, auto, auto put) { put(sums + j, F32{}); });
}

template <typename From, typename To>
void sum_group(const ColumnSums& s, std::int64_t begin, std::int64_t columns) {
  const From* from = static_cast<const From*>(s.from) + begin;
  To* to = static_cast<To*>(s.to) + begin;
  alignas(64) float total[kGroup], run[kGroup];
  clear(total, columns);
  for (std::int64_t first = 0; first < s.rows; first += kRunOfRows) {
    const std::int64_t last = first + kRunOfRows < s.rows ? first + kRunOfRows : s.rows;
    clear(run, columns);
    std::int64_t i = first;
    for (; i + kTogether <= last; i += kTogether) add_rows<kTogether>(from + i * s.columns, s.columns, columns, run);
    for (; i < last; ++i) add_rows<1>(from + i * s.columns, s.columns, columns, run);
    add_rows<1>(run, 0, columns, total);
  }
  for_each_vector(0, columns, [&](std::int64_t j, auto get, auto put) {
    put(to + j, s.accumulate ? get(total + j) + get(to + j) : get(total + j));
  });
}

template <typename From, typename To>
void sum_as(const ColumnSums& s, std::int64_t begin, std::int64_t end) {
  for (; begin < end; begin += kGroup) sum_group<From, To>(s, begin, end - begin < kGroup ? end - begin : kGroup);
}

}  // namespace

void sum_columns_of(const ColumnSums& s, std::int64_t begin, std::int64_t end) {
  if (s.from_is_f32)
    s.to_is_f32 ? sum_as<float, float>(s, begin, end) : sum_as<float, Bf16>(s, begin, end);
  else
    s.to_is_f32 ? sum_as<Bf16, float>(s, begin, end) : sum_as<Bf16, Bf16>(s, begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
