// mean and its gradient. Over the last dim a warp has a row; over another a thread has an element of y, and its
// neighbours read side by side. Sums are f32 in one order. Bound by memory: x is read, or written, once.
#include "kernels/mean.h"

#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// ---- Device ----

template <typename T>
__global__ void __launch_bounds__(kThreads) mean_rows(const T* x, T* y, std::int64_t rows, std::int64_t count) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= rows) return;
  float sum = 0;
  for (std::int64_t i = threadIdx.x % kWarp; i < count; i += kWarp) sum += to_f32(x[row * count + i]);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) y[row] = from_f32<T>(sum / static_cast<float>(count));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) mean_columns(const T* x, T* y, MeanSizes s, Divisor inner_dims) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= s.outer * s.inner) return;
  const auto [outer, inner] = inner_dims(i);
  const T* at = x + outer * s.count * s.inner + inner;
  float sum = 0;
  for (std::int64_t k = 0; k < s.count; ++k, at += s.inner) sum += to_f32(*at);
  y[i] = from_f32<T>(sum / static_cast<float>(s.count));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    mean_grad(const T* dy, T* dx, MeanSizes s, Divisor of_mean, Divisor inner_dims) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= s.outer * s.count * s.inner) return;
  const std::int64_t from = of_mean(i).whole * s.inner + inner_dims(i).rest;
  dx[i] = from_f32<T>(to_f32(dy[from]) / static_cast<float>(s.count));
}

}  // namespace

// ---- Host ----

Prepared prepare_mean(const Signature& signature, const Context&) {
  const MeanSizes s = mean_sizes(signature);
  const Divisor inner_dims(s.inner);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    if (s.inner == 1) {
      const Grid grid{.blocks = blocks_for(s.outer, kThreads / kWarp), .threads = kThreads};
      return make_kernel([=](const Call& call) {
        launch(call, grid, mean_rows<T>, operand<T>(call, 0), operand<T>(call, 1), s.outer, s.count);
      });
    }
    const Grid grid{.blocks = blocks_for(s.outer * s.inner, kThreads), .threads = kThreads};
    return make_kernel([=](const Call& call) {
      launch(call, grid, mean_columns<T>, operand<T>(call, 0), operand<T>(call, 1), s, inner_dims);
    });
  });
}

Prepared prepare_mean_grad(const Signature& signature, const Context&) {
  const MeanSizes s = mean_sizes(signature);
  const Divisor of_mean(s.count * s.inner), inner_dims(s.inner);
  const Grid grid{.blocks = blocks_for(s.outer * s.count * s.inner, kThreads), .threads = kThreads};
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      launch(call, grid, mean_grad<T>, operand<T>(call, 0), operand<T>(call, 1), s, of_mean, inner_dims);
    });
  });
}

}  // namespace trainer::kernels::cuda
