// Pools and their gradients: a thread makes one element of the output whole, gradients by looking up which windows had
// it, so that nothing is added by several. Bound by memory where windows do not overlap; where they do, neighbours find
// what they share in the cache. A small part of the convnets that have them.
#include <algorithm>

#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct Window {
  std::int64_t planes;
  int h, w, oh, ow, kernel, stride, padding;
};

// ---- Device ----

struct Range {
  int begin, end;
};

/// The part [first, last) of [0, size) that window `out` covers.
__device__ __forceinline__ Range cover(const Window& s, int out, int size) {
  const int start = out * s.stride - s.padding;
  return {max(start, 0), min(start + s.kernel, size)};
}

/// The windows that cover place `at`: the inverse of cover.
__device__ __forceinline__ Range covered_by(const Window& s, int at, int outputs) {
  const int shifted = at + s.padding;
  return {shifted < s.kernel ? 0 : (shifted - s.kernel) / s.stride + 1, min(shifted / s.stride + 1, outputs)};
}

/// Calls fn(plane, place) for every element of planes of `size`; the grid is (parts of a plane, planes).
template <typename Fn>
__device__ __forceinline__ void each_element(std::int64_t planes, int size, Fn&& fn) {
  const int place = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (place >= size) return;
  for (std::int64_t plane = blockIdx.y; plane < planes; plane += gridDim.y) fn(plane, place);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) max_pool(const T* x, T* y, std::int32_t* index, Window s) {
  each_element(s.planes, s.oh * s.ow, [&](std::int64_t plane, int out) {
    const T* const from = x + plane * s.h * s.w;
    const Range rows = cover(s, out / s.ow, s.h), columns = cover(s, out % s.ow, s.w);
    int best = rows.begin * s.w + columns.begin;
    float largest = to_f32(from[best]);
    for (int row = rows.begin; row < rows.end; ++row)
      for (int column = columns.begin; column < columns.end; ++column) {
        const float value = to_f32(from[row * s.w + column]);
        if (value > largest || (value != value && largest == largest)) largest = value, best = row * s.w + column;
      }
    const std::int64_t at = plane * s.oh * s.ow + out;
    y[at] = from_f32<T>(largest);
    index[at] = best;
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) max_pool_grad(const T* dy, const std::int32_t* index, T* dx, Window s) {
  each_element(s.planes, s.h * s.w, [&](std::int64_t plane, int place) {
    const std::int64_t outputs = plane * s.oh * s.ow;
    const Range rows = covered_by(s, place / s.w, s.oh), columns = covered_by(s, place % s.w, s.ow);
    float sum = 0;
    for (int row = rows.begin; row < rows.end; ++row)
      for (int column = columns.begin; column < columns.end; ++column) {
        const std::int64_t at = outputs + row * s.ow + column;
        if (index[at] == place) sum += to_f32(dy[at]);
      }
    dx[plane * s.h * s.w + place] = from_f32<T>(sum);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) average_pool(const T* x, T* y, Window s) {
  const float scale = 1.0F / static_cast<float>(s.kernel * s.kernel);
  each_element(s.planes, s.oh * s.ow, [&](std::int64_t plane, int out) {
    const T* const from = x + plane * s.h * s.w;
    const Range rows = cover(s, out / s.ow, s.h), columns = cover(s, out % s.ow, s.w);
    float sum = 0;
    for (int row = rows.begin; row < rows.end; ++row)
      for (int column = columns.begin; column < columns.end; ++column) sum += to_f32(from[row * s.w + column]);
    y[plane * s.oh * s.ow + out] = from_f32<T>(sum * scale);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) average_pool_grad(const T* dy, T* dx, Window s) {
  const float scale = 1.0F / static_cast<float>(s.kernel * s.kernel);
  each_element(s.planes, s.h * s.w, [&](std::int64_t plane, int place) {
    const T* const from = dy + plane * s.oh * s.ow;
    const Range rows = covered_by(s, place / s.w, s.oh), columns = covered_by(s, place % s.w, s.ow);
    float sum = 0;
    for (int row = rows.begin; row < rows.end; ++row)
      for (int column = columns.begin; column < columns.end; ++column) sum += to_f32(from[row * s.ow + column]);
    dx[plane * s.h * s.w + place] = from_f32<T>(sum * scale);
  });
}

// ---- Host ----

/// The window from the larger (x or dx) and the smaller (y or dy) operand.
Window window_of(const Signature& signature, const TensorDesc& large, const TensorDesc& small) {
  const Shape &x = large.shape, &y = small.shape;
  CHECK(x.rank() == 4 && y.rank() == 4, describe(signature) + " takes [n, ch, h, w]");
  CHECK(x[2] * x[3] < std::int64_t{1} << 31, describe(signature) + ": places in a plane are 32 bits");
  const std::int64_t kernel = integer(signature, "kernel"), stride = integer(signature, "stride"),
                     padding = integer(signature, "padding");
  const auto outputs = [&](std::int64_t size) { return (size + 2 * padding - kernel) / stride + 1; };
  CHECK(padding * 2 <= kernel, "a pool's padding is at most half its kernel");
  CHECK(x[0] * x[1] == y[0] * y[1] && outputs(x[2]) == y[2] && outputs(x[3]) == y[3],
        describe(signature) + ": shapes do not match kernel, stride and padding");
  const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
  return {x[0] * x[1],  narrow(x[2]),   narrow(x[3]),   narrow(y[2]),
          narrow(y[3]), narrow(kernel), narrow(stride), narrow(padding)};
}

Grid grid_for(const Window& s, int plane_elements) {
  return {.blocks = dim3(blocks_for(plane_elements, kThreads),
                         static_cast<unsigned>(std::clamp<std::int64_t>(s.planes, 1, 65535))),
          .threads = kThreads};
}

}  // namespace

Prepared prepare_pool(const Signature& signature, const Context&) {
  const bool largest = signature.op == Op::max_pool2d;
  expect_operands(signature, largest ? 3 : 2);
  const TensorDesc &x = signature.operands[0], &y = signature.operands[1];
  const Window s = window_of(signature, x, y);
  expect_operand(signature, 1, x.dtype, y.elements());
  if (largest) expect_operand(signature, 2, DType::i32, y.elements());
  const Grid grid = grid_for(s, s.oh * s.ow);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    if (largest)
      return make_kernel([=](const Call& call) {
        launch(call, grid, max_pool<T>, operand<T>(call, 0), operand<T>(call, 1), operand<std::int32_t>(call, 2), s);
      });
    return make_kernel(
        [=](const Call& call) { launch(call, grid, average_pool<T>, operand<T>(call, 0), operand<T>(call, 1), s); });
  });
}

Prepared prepare_pool_grad(const Signature& signature, const Context&) {
  const int dx = signature.op == Op::max_pool2d_grad ? 2 : 1;
  expect_operands(signature, static_cast<std::size_t>(dx + 1));
  const TensorDesc &dy = signature.operands[0], &large = signature.operands[static_cast<std::size_t>(dx)];
  const Window s = window_of(signature, large, dy);
  expect_operand(signature, dx, dy.dtype, large.elements());
  if (dx == 2) expect_operand(signature, 1, DType::i32, dy.elements());
  const Grid grid = grid_for(s, s.h * s.w);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    if (dx == 2)
      return make_kernel([=](const Call& call) {
        launch(call, grid, max_pool_grad<T>, operand<T>(call, 0), operand<std::int32_t>(call, 1), operand<T>(call, 2),
               s);
      });
    return make_kernel([=](const Call& call) {
      launch(call, grid, average_pool_grad<T>, operand<T>(call, 0), operand<T>(call, 1), s);
    });
  });
}

}  // namespace trainer::kernels::cuda
