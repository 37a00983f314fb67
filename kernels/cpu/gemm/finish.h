// The end of a product, for loops files: sums in f32 become rows of C, with bias and what C held.
#pragma once

#include "kernels/cpu/gemm/problem.h"
#include "kernels/cpu/runtime/vec_stream.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

/// `rows` of a whole strip; kStream: past the caches.
template <typename T, typename Bias, bool kAdd, bool kStream>
void finish_whole(const float* sums, std::int64_t rows, const Bias* bias, const T* addend, T* c, std::int64_t ldc) {
  constexpr int kCount = static_cast<int>(gemm::kStrip) / kLanes;
  F32 b[kCount];
#pragma GCC unroll 8
  for (int v = 0; v < kCount; ++v) b[v] = bias ? load(bias + v * kLanes) : F32{};
  for (std::int64_t i = 0; i < rows; ++i) {
    F32 y[kCount];
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      y[v] = load(sums + i * gemm::kStrip + v * kLanes);
      if (bias) y[v] += b[v];
      if constexpr (kAdd) y[v] += load(addend + i * ldc + v * kLanes);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      T* to = c + i * ldc + v * kLanes;
      if constexpr (sizeof(T) == 4)
        kStream ? stream(to, y[v]) : store(to, y[v]);
      else if (v % 2 == 0)
        kStream ? stream(to, y[v], y[v + 1]) : store_both(to, y[v], y[v + 1]);
    }
  }
}

/// `rows` of `columns`, of sums that lie [rows][ld].
template <typename T, typename Bias>
void finish_edge(const float* sums, std::int64_t ld, std::int64_t rows, std::int64_t columns, const Bias* bias,
                 const T* addend, T* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < rows; ++i)
    for_each_vector(0, columns, [&](std::int64_t j, auto get, auto put) {
      F32 y = get(sums + i * ld + j);
      if (bias) y += get(bias + j);
      if (addend) y += get(addend + i * ldc + j);
      put(c + i * ldc + j, y);
    });
}

template <typename T, typename Bias>
void finish_as(const gemm::Problem& p, const float* sums, std::int64_t row, std::int64_t rows, std::int64_t strip) {
  const std::int64_t column = strip * gemm::kStrip, columns = gemm::least(gemm::kStrip, p.n - column);
  const Bias* bias = p.bias ? static_cast<const Bias*>(p.bias) + column : nullptr;
  const std::int64_t first = row * p.ldc + column;
  T* c = static_cast<T*>(p.c) + first;
  const T* addend = p.addend ? static_cast<const T*>(p.addend) + first : nullptr;
  if (columns < gemm::kStrip) return finish_edge<T, Bias>(sums, gemm::kStrip, rows, columns, bias, addend, c, p.ldc);
  const bool streams = kStreams && p.stream;
  if (addend)
    streams ? finish_whole<T, Bias, true, true>(sums, rows, bias, addend, c, p.ldc)
            : finish_whole<T, Bias, true, false>(sums, rows, bias, addend, c, p.ldc);
  else
    streams ? finish_whole<T, Bias, false, true>(sums, rows, bias, addend, c, p.ldc)
            : finish_whole<T, Bias, false, false>(sums, rows, bias, addend, c, p.ldc);
}

/// Rows [row, row + rows) of strip `strip` of C from sums [rows][kStrip]. Bias: what the inputs hold.
template <typename Bias>
void finish_rows(const gemm::Problem& p, const float* sums, std::int64_t row, std::int64_t rows, std::int64_t strip) {
  p.c_is_f32 ? finish_as<float, Bias>(p, sums, row, rows, strip) : finish_as<Bf16, Bias>(p, sums, row, rows, strip);
}

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
