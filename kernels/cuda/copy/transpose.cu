// transpose. Where the last dim of y is another than that of x, a block turns a square of 32 x 32 elements in shared
// memory, so that a warp reads and writes neighbours on both sides; else each thread copies one element, and its
// neighbours lie side by side on both sides. Bound by memory: every element is read and written once.
#include "kernels/transpose.h"

#include <algorithm>

#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kTile = 32, kRows = kThreads / kTile;  // rows of a square that a block has at once

/// Dims of y but those that a square has, with strides in x and y.
struct Outer {
  int rank = 0;
  Divisor size[Shape::kMaxDims];
  std::int64_t x[Shape::kMaxDims] = {}, y[Shape::kMaxDims] = {};
};

// ---- Device ----

struct Place {
  std::int64_t x = 0, y = 0;
};

__device__ __forceinline__ Place place_of(const Outer& s, std::int64_t index) {
  Place place;
  for (int dim = s.rank - 1; dim >= 0; --dim) {
    const auto [before, at] = s.size[dim](index);
    index = before;
    place.x += at * s.x[dim];
    place.y += at * s.y[dim];
  }
  return place;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    copy_places(const T* x, T* y, const __grid_constant__ Outer s, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const Place place = place_of(s, i);
  y[place.y] = x[place.x];
}

// Rows of y lie `y_row` apart and are neighbours in x; columns are neighbours in y and lie `x_column` apart in x.
template <typename T>
__global__ void __launch_bounds__(kThreads, 6)
    turn(const T* x, T* y, const __grid_constant__ Outer s, std::int64_t outer, std::int64_t rows, std::int64_t columns,
         std::int64_t y_row, std::int64_t x_column) {
  __shared__ T tile[kTile][kTile + 1];
  const std::int64_t across = (columns + kTile - 1) / kTile;
  const std::int64_t row = blockIdx.x / across * kTile, column = blockIdx.x % across * kTile;
  const int lane = static_cast<int>(threadIdx.x) % kTile, first = static_cast<int>(threadIdx.x) / kTile;
  for (std::int64_t at = blockIdx.y; at < outer; at += gridDim.y) {
    const Place place = place_of(s, at);
    for (int k = first; k < kTile; k += kRows)
      if (row + lane < rows && column + k < columns) tile[k][lane] = x[place.x + row + lane + (column + k) * x_column];
    __syncthreads();
    for (int k = first; k < kTile; k += kRows)
      if (row + k < rows && column + lane < columns) y[place.y + (row + k) * y_row + column + lane] = tile[lane][k];
    __syncthreads();
  }
}

// ---- Host ----

template <typename T>
Prepared transpose_of(const Strides& s, std::int64_t count) {
  std::int64_t stride[Shape::kMaxDims] = {}, step = 1;
  for (int dim = s.rank - 1; dim >= 0; step *= s.size[dim--]) stride[dim] = step;
  const int last = s.rank - 1;
  const bool runs = s.rank == 0 || s.stride[last] == 1;
  const int inner = runs ? -1 : static_cast<int>(std::find(s.stride, s.stride + s.rank, 1) - s.stride);
  Outer outer;
  for (int dim = 0; dim < s.rank; ++dim) {
    if (!runs && (dim == inner || dim == last)) continue;
    outer.size[outer.rank] = Divisor(s.size[dim]);
    outer.x[outer.rank] = s.stride[dim];
    outer.y[outer.rank++] = stride[dim];
  }
  if (runs) {
    const Grid grid{.blocks = blocks_for(count, kThreads), .threads = kThreads};
    return make_kernel([=](const Call& call) {
      launch(call, grid, copy_places<T>, operand<T>(call, 0), operand<T>(call, 1), outer, count);
    });
  }
  const std::int64_t rows = s.size[inner], columns = s.size[last], others = count / (rows * columns);
  const std::int64_t y_row = stride[inner], x_column = s.stride[last];
  const std::int64_t squares = (rows + kTile - 1) / kTile * ((columns + kTile - 1) / kTile);
  CHECK(squares < std::int64_t{1} << 31, "squares are counted in 31 bits");
  const Grid grid{
      .blocks = dim3(static_cast<unsigned>(squares), static_cast<unsigned>(std::clamp<std::int64_t>(others, 1, 65535))),
      .threads = kThreads};
  return make_kernel([=](const Call& call) {
    launch(call, grid, turn<T>, operand<T>(call, 0), operand<T>(call, 1), outer, others, rows, columns, y_row,
           x_column);
  });
}

}  // namespace

Prepared prepare_transpose(const Signature& signature, const Context&) {
  const Strides s = transpose_strides(signature);
  const TensorDesc& x = signature.operands[0];
  switch (size_of(x.dtype)) {
    case 2:
      return transpose_of<std::uint16_t>(s, x.elements());
    case 4:
      return transpose_of<std::uint32_t>(s, x.elements());
    default:
      refuse_dtypes(signature, "elements of 2 or 4 bytes");
  }
}

}  // namespace trainer::kernels::cuda
