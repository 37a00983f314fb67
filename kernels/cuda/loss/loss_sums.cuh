// What losses share: the sum of what rows or blocks have left, in f64 and in an order that shapes fix.
#pragma once

#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {

inline constexpr int kSumLossThreads = 1024;

/// y = or += the sum of values [count], by one block.
static __global__ void __launch_bounds__(kSumLossThreads)
    sum_values(const double* values, double* y, std::int64_t count, bool accumulate) {
  __shared__ double shared[kSumLossThreads / kWarp];
  double sum = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += kSumLossThreads) sum += values[i];
  sum = block_sum<kSumLossThreads>(sum, shared);
  if (threadIdx.x == 0) *y = accumulate ? *y + sum : sum;
}

inline void launch_sum_values(const Call& call, const double* values, double* y, std::int64_t count, bool accumulate) {
  launch(call, Grid{.threads = kSumLossThreads}, sum_values, values, y, count, accumulate);
}

}  // namespace trainer::kernels::cuda
