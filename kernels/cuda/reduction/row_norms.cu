// row_squares and over_root. A block has a row: its threads sum columns apart, each in f32, and the block adds them up
// in one order. Bound by memory, and of a large rank by the L2 cache, from which every block reads a: the weight is
// read once.
#include "kernels/row_norms.h"

#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// ---- Device ----

template <typename T>
__global__ void __launch_bounds__(kThreads) row_squares(const T* w, const T* a, const T* b, float factor,
                                                        std::int64_t columns, std::int64_t rank, float* squares) {
  __shared__ float shared[kThreads / kWarp];
  const std::int64_t row = blockIdx.x;
  float sum = 0;
  for (std::int64_t j = threadIdx.x; j < columns; j += kThreads) {
    float value = to_f32(w[row * columns + j]);
    for (std::int64_t k = 0; k < rank; ++k) value += factor * to_f32(b[row * rank + k]) * to_f32(a[k * columns + j]);
    sum += value * value;
  }
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) squares[row] = sum;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) over_root(const T* x, const float* squares, T* y, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) y[i] = from_f32<T>(squares[i] == 0 ? 0.0F : to_f32(x[i]) / sqrtf(squares[i]));
}

}  // namespace

// ---- Host ----

Prepared prepare_row_squares(const Signature& signature, const Context&) {
  const RowSquaresSizes s = row_squares_sizes(signature);
  const float factor = static_cast<float>(real(signature, "factor"));
  const Grid grid{.blocks = static_cast<unsigned>(s.rows), .threads = kThreads};
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      launch(call, grid, row_squares<T>, operand<T>(call, 0), operand<T>(call, 1), operand<T>(call, 2), factor,
             s.columns, s.rank, operand<float>(call, 3));
    });
  });
}

Prepared prepare_over_root(const Signature& signature, const Context&) {
  expect_operands(signature, 3);
  expect_alike(signature, {0, 2});
  const std::int64_t count = signature.operands[0].elements();
  expect_operand(signature, 1, DType::f32, count);
  const Grid grid{.blocks = blocks_for(count, kThreads), .threads = kThreads};
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      launch(call, grid, over_root<T>, operand<T>(call, 0), operand<float>(call, 1), operand<T>(call, 2), count);
    });
  });
}

}  // namespace trainer::kernels::cuda
