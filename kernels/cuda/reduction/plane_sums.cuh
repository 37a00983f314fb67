// Sums over the planes of [rows, columns, inner] for each column in f32: a block has a column, and reads it once.
#pragma once

#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {

inline constexpr int kPlaneThreads = 256;

template <typename T, typename R>
__global__ void __launch_bounds__(kPlaneThreads)
    sum_planes(const T* x, int rows, int columns, int inner, bool accumulate, R* to) {
  __shared__ float shared[kPlaneThreads / kWarp];
  const int column = static_cast<int>(blockIdx.x);
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < rows * inner; i += kPlaneThreads)
    sum += to_f32(x[(static_cast<std::int64_t>(i / inner) * columns + column) * inner + i % inner]);
  sum = block_sum<kPlaneThreads>(sum, shared);
  if (threadIdx.x == 0) to[column] = from_f32<R>(accumulate ? to_f32(to[column]) + sum : sum);
}

/// y = or += the sums of x's columns. REQUIRES: rows · inner + kPlaneThreads fits in an int.
template <typename T, typename R>
void launch_plane_sums(const Call& call, const T* x, R* y, int rows, int columns, int inner, bool accumulate) {
  launch(call, {.blocks = static_cast<unsigned>(columns), .threads = kPlaneThreads}, sum_planes<T, R>, x, rows, columns,
         inner, accumulate, y);
}

}  // namespace trainer::kernels::cuda
