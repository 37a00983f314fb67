// Sums over the rows of [rows, columns] in f32, in an order that shapes and the number of multiprocessors fix: the rows
// are cut into parts, a block sums a part of some columns, and a second pass joins the parts in order. Bound by memory:
// x is read once; the parts are at most two a multiprocessor, f32 [parts, columns], and stay in the L2 cache.
#pragma once

#include "kernels/cuda/reduction/column_cut.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {

inline constexpr int kSlices = ColumnCut::kSlices;
inline constexpr int kSumThreads = kSlices * kWarp;

/// The sum of `value` over the slices (warps) of a block, in order; in the first warp alone. `shared` is [kSlices · 32
/// · N] and may be used again after the next __syncthreads.
template <int N>
__device__ __forceinline__ void sum_slices(float (&value)[N], float* shared) {
  const int lane = threadIdx.x % kWarp, slice = threadIdx.x / kWarp;
#pragma unroll
  for (int i = 0; i < N; ++i) shared[(slice * N + i) * kWarp + lane] = value[i];
  __syncthreads();
  if (slice != 0) return;
#pragma unroll
  for (int other = 1; other < kSlices; ++other) {
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] += shared[(other * N + i) * kWarp + lane];
  }
}

/// y = or += the sum of partials [parts, stride] over parts, for `columns` columns; of the columns after them,
/// `second`. Blocks: columns / 32, and 2 where there is a second.
template <typename R>
__global__ void __launch_bounds__(kSumThreads) join_parts(const float* partials, R* y, R* second, int parts,
                                                          std::int64_t stride, std::int64_t columns, bool accumulate) {
  __shared__ float shared[kSumThreads];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp;
  const int slice = threadIdx.x / kWarp;
  const int each = (parts + kSlices - 1) / kSlices, end = min(parts, (slice + 1) * each);
  const float* const from = partials + blockIdx.y * columns + column;
  float sum[1] = {0};
  if (column < columns) {
#pragma unroll 8
    for (int part = slice * each; part < end; ++part) sum[0] += from[part * stride];
  }
  sum_slices(sum, shared);
  if (slice != 0 || column >= columns) return;
  R* const to = blockIdx.y == 0 ? y : second;
  to[column] = from_f32<R>(accumulate ? to_f32(to[column]) + sum[0] : sum[0]);
}

/// Blocks: columns / (32 N) by parts. Of N columns a thread. Writes partials [parts, columns], or y where there is one
/// part.
template <int N, typename T, typename R>
__global__ void __launch_bounds__(kSumThreads) sum_part(const T* x, float* partials, R* y, std::int64_t rows,
                                                        std::int64_t columns, std::int64_t rows_each, bool accumulate) {
  __shared__ float shared[kSumThreads * N];
  const std::int64_t vectors = columns / N,
                     vector = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp;
  const std::int64_t begin = blockIdx.y * rows_each, end = min(rows, begin + rows_each);
  float sum[N] = {};
  if (vector < vectors) {
#pragma unroll 4
    for (std::int64_t row = begin + threadIdx.x / kWarp; row < end; row += kSlices) {
      float v[N];
      if constexpr (N == 1)
        v[0] = to_f32(x[row * vectors + vector]);
      else
        widen(load_packed<N>(x, row * vectors + vector), v);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += v[i];
    }
  }
  sum_slices(sum, shared);
  if (threadIdx.x >= kWarp || vector >= vectors) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const std::int64_t column = vector * N + i;
    if (gridDim.y == 1)
      y[column] = from_f32<R>(accumulate ? to_f32(y[column]) + sum[i] : sum[i]);
    else
      partials[blockIdx.y * columns + column] = sum[i];
  }
}

template <typename R>
void launch_join(const Call& call, const float* partials, R* y, R* second, int parts, std::int64_t stride,
                 std::int64_t columns, bool accumulate) {
  const Grid grid{.blocks = dim3(blocks_for(columns, kWarp), second == nullptr ? 1 : 2), .threads = kSumThreads};
  launch(call, grid, join_parts<R>, partials, y, second, parts, stride, columns, accumulate);
}

/// y = or += the sums of x's columns; `partials` is [parts, columns].
template <typename T, typename R>
void launch_column_sums(const Call& call, const ColumnCut& cut, const T* x, R* y, float* partials, bool accumulate) {
  const bool whole = in_vectors<T>(cut.columns);
  const Grid grid{
      .blocks = dim3(blocks_for(cut.columns, whole ? kWarp * kVector<T> : kWarp), static_cast<unsigned>(cut.parts)),
      .threads = kSumThreads};
  launch(call, grid, whole ? sum_part<kVector<T>, T, R> : sum_part<1, T, R>, x, partials, y, cut.rows, cut.columns,
         cut.rows_each, accumulate);
  if (cut.parts > 1)
    launch_join<R>(call, partials, y, nullptr, static_cast<int>(cut.parts), cut.columns, cut.columns, accumulate);
}

}  // namespace trainer::kernels::cuda
