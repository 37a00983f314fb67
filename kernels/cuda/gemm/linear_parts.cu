// Passes over memory around linear's products: sums of columns (column_sums.cuh), a bias laid out in rows, sums that
// are rounded apart.
#include "kernels/cuda/gemm/linear_parts.h"

#include "kernels/cuda/reduction/column_sums.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// ---- Device ----

template <typename T>
__global__ void __launch_bounds__(kThreads) lay_out_bias(const T* bias, T* y, Divisor columns, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) y[i] = bias[columns(i).rest];
}

template <typename R>
__global__ void __launch_bounds__(kThreads) round_each(const float* from, R* to, std::int64_t count, bool accumulate) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = from_f32<R>(from[i] + (accumulate ? to_f32(to[i]) : 0.0F));
}

}  // namespace

void fill_rows(const Call& call, DType c, const void* bias, void* y, std::int64_t rows, std::int64_t columns) {
  with_type(c, [&]<typename T>(T) {
    launch(call, {.blocks = blocks_for(rows * columns, kThreads), .threads = kThreads}, lay_out_bias<T>,
           static_cast<const T*>(bias), static_cast<T*>(y), Divisor(columns), rows * columns);
  });
}

void round_to(const Call& call, const float* from, DType r, void* to, std::int64_t count, bool accumulate) {
  const Grid grid{.blocks = blocks_for(count, kThreads), .threads = kThreads};
  if (r == DType::f32) return launch(call, grid, round_each<float>, from, static_cast<float*>(to), count, accumulate);
  launch(call, grid, round_each<bf16>, from, static_cast<bf16*>(to), count, accumulate);
}

ColumnSums::ColumnSums(DType c, DType r, std::int64_t rows, std::int64_t columns, bool accumulate, int units)
    : c(c), r(r), accumulate(accumulate), cut(c, rows, columns, units) {}

void ColumnSums::run(const Call& call, const void* x, void* sums, float* workspace) const {
  with_type(c, [&]<typename T>(T) {
    with_reduce_type(r, [&]<typename R>(R) {
      launch_column_sums(call, cut, static_cast<const T*>(x), static_cast<R*>(sums), workspace, accumulate);
    });
  });
}

}  // namespace trainer::kernels::cuda
