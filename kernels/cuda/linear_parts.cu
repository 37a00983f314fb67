// Passes over memory around linear's products: sums of columns, a bias laid out in rows, sums that are rounded apart.
#include "kernels/cuda/linear_parts.h"

#include <algorithm>

#include "kernels/cuda/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kRowsInFlight = 4;

// ---- Device ----

template <typename T>
__global__ void __launch_bounds__(kThreads) lay_out_bias(const T* bias, T* y, std::int64_t columns, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) y[i] = bias[i % columns];
}

template <typename R>
__global__ void __launch_bounds__(kThreads) round_each(const float* from, R* to, std::int64_t count, bool accumulate) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = from_f32<R>(from[i] + (accumulate ? to_f32(to[i]) : 0.0F));
}

// N columns a lane, 32·N a block; of this part's rows each warp takes every eighth.
template <int N, typename T>
__global__ void __launch_bounds__(kThreads) sum_part(const T* x, std::int64_t rows, std::int64_t columns, float* sums) {
  __shared__ float shared[kWarps][kWarp * N];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kWarp + lane) * N;
  const std::int64_t part = blockIdx.y, parts = gridDim.y, begin = rows * part / parts, end = rows * (part + 1) / parts;
  float sum[N] = {};
  if (first < columns) {
    for (std::int64_t row = begin + warp; row < end; row += kRowsInFlight * kWarps) {
      Vec<T, N> held[kRowsInFlight];
#pragma unroll
      for (int k = 0; k < kRowsInFlight; ++k)
        if (row + k * kWarps < end) held[k] = load<N>(x + (row + k * kWarps) * columns + first, 0);
#pragma unroll
      for (int k = 0; k < kRowsInFlight; ++k)
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += row + k * kWarps < end ? to_f32(held[k][i]) : 0.0F;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) shared[warp][i * kWarp + lane] = sum[i];
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < kWarp * N; column += kThreads) {
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kWarp * N + column;
    if (at >= columns) continue;
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += shared[w][column % N * kWarp + column / N];
    sums[part * columns + at] = total;
  }
}

template <typename R>
__global__ void __launch_bounds__(kThreads) join_parts(const float* sums, int parts, std::int64_t columns, R* to, bool accumulate) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  float total = accumulate ? to_f32(to[column]) : 0.0F;
#pragma unroll 4
  for (int part = 0; part < parts; ++part) total += sums[part * columns + column];
  to[column] = from_f32<R>(total);
}

// ---- Host ----

template <int N, typename T>
void sum_parts(const Call& call, const T* x, const ColumnSums& s, float* sums) {
  const Grid grid{.blocks = dim3(blocks_for(s.columns, kWarp * N), static_cast<unsigned>(s.parts)), .threads = kThreads};
  launch(call, grid, sum_part<N, T>, x, s.rows, s.columns, sums);
}

}  // namespace

void fill_rows(const Call& call, DType c, const void* bias, void* y, std::int64_t rows, std::int64_t columns) {
  with_type(c, [&]<typename T>(T) {
    launch(call, {.blocks = blocks_for(rows * columns, kThreads), .threads = kThreads}, lay_out_bias<T>, static_cast<const T*>(bias),
           static_cast<T*>(y), columns, rows * columns);
  });
}

void round_to(const Call& call, const float* from, DType r, void* to, std::int64_t count, bool accumulate) {
  const Grid grid{.blocks = blocks_for(count, kThreads), .threads = kThreads};
  if (r == DType::f32) return launch(call, grid, round_each<float>, from, static_cast<float*>(to), count, accumulate);
  launch(call, grid, round_each<bf16>, from, static_cast<bf16*>(to), count, accumulate);
}

ColumnSums::ColumnSums(DType c, DType r, std::int64_t rows, std::int64_t columns, bool accumulate, int units)
    : c(c), r(r), rows(rows), columns(columns), accumulate(accumulate) {
  // Enough blocks for every multiprocessor to have four, each with some rows for every warp; no more parts than the workspace holds.
  const std::int64_t tiles = (columns + kWarp - 1) / kWarp / (c == DType::f32 ? kVector<float> : kVector<bf16>)+1;
  const std::int64_t most = std::min<std::int64_t>(2 * units, (rows + kRowsInFlight * kWarps - 1) / (kRowsInFlight * kWarps));
  parts = static_cast<int>(std::clamp<std::int64_t>(4 * units / tiles, 1, std::max<std::int64_t>(1, most)));
}

void ColumnSums::run(const Call& call, const void* x, void* sums, float* workspace) const {
  with_type(c, [&]<typename T>(T) {
    if (in_vectors<T>(columns))
      sum_parts<kVector<T>>(call, static_cast<const T*>(x), *this, workspace);
    else
      sum_parts<1>(call, static_cast<const T*>(x), *this, workspace);
  });
  const Grid grid{.blocks = blocks_for(columns, kThreads), .threads = kThreads};
  if (r == DType::f32) return launch(call, grid, join_parts<float>, workspace, parts, columns, static_cast<float*>(sums), accumulate);
  launch(call, grid, join_parts<bf16>, workspace, parts, columns, static_cast<bf16*>(sums), accumulate);
}

}  // namespace trainer::kernels::cuda
