// Pooling, cut over planes. Plain loops: a small part of the convnets that use it, bound by memory beyond toy sizes.
#include "kernels/pool.h"

#include <cmath>

#include "engine/core/op_record.h"
#include "kernels/bf16.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

struct Window {
  std::int64_t planes, h, w, oh, ow, kernel, stride, padding;

  /// The part [first, last) of [0, size) that window `out` covers.
  Range cover(std::int64_t out, std::int64_t size) const {
    const std::int64_t start = out * stride - padding;
    return {std::max<std::int64_t>(start, 0), std::min(start + kernel, size)};
  }
};

/// The window from the larger (x or dx) and the smaller (y or dy) operand.
Window window_of(const Signature& signature, const TensorDesc& large, const TensorDesc& small) {
  const Shape &x = large.shape, &y = small.shape;
  CHECK(x.rank() == 4 && y.rank() == 4, describe(signature) + " takes [n, ch, h, w]");
  const Window window{x[0] * x[1],
                      x[2],
                      x[3],
                      y[2],
                      y[3],
                      integer(signature, "kernel"),
                      integer(signature, "stride"),
                      integer(signature, "padding")};
  const auto outputs = [&](std::int64_t size) {
    return (size + 2 * window.padding - window.kernel) / window.stride + 1;
  };
  CHECK(window.padding * 2 <= window.kernel, "a pool's padding is at most half its kernel");
  CHECK(window.planes == y[0] * y[1] && outputs(window.h) == window.oh && outputs(window.w) == window.ow,
        describe(signature) + ": shapes do not match kernel, stride and padding");
  return window;
}

float as_element(float value, const float*) { return value; }
Bf16 as_element(float value, const Bf16*) { return to_bf16(value); }

template <typename T>
void max_plane(const Window& s, const T* x, T* y, std::int32_t* index) {
  for (std::int64_t oy = 0; oy < s.oh; ++oy)
    for (std::int64_t ox = 0; ox < s.ow; ++ox) {
      const Range rows = s.cover(oy, s.h), columns = s.cover(ox, s.w);
      std::int64_t best = rows.begin * s.w + columns.begin;
      float largest = to_f32(x[best]);
      for (std::int64_t row = rows.begin; row < rows.end; ++row)
        for (std::int64_t column = columns.begin; column < columns.end; ++column) {
          const float value = to_f32(x[row * s.w + column]);
          if (value > largest || (std::isnan(value) && !std::isnan(largest)))
            largest = value, best = row * s.w + column;
        }
      y[oy * s.ow + ox] = x[best];
      index[oy * s.ow + ox] = static_cast<std::int32_t>(best);
    }
}

template <typename T>
void max_grad_plane(const Window& s, const T* dy, const std::int32_t* index, T* dx, float* sums) {
  std::fill(sums, sums + s.h * s.w, 0.0f);
  for (std::int64_t i = 0; i < s.oh * s.ow; ++i) sums[index[i]] += to_f32(dy[i]);
  for (std::int64_t i = 0; i < s.h * s.w; ++i) dx[i] = as_element(sums[i], dx);
}

template <typename T>
void average_plane(const Window& s, const T* x, T* y) {
  const float scale = 1.0f / static_cast<float>(s.kernel * s.kernel);
  for (std::int64_t oy = 0; oy < s.oh; ++oy)
    for (std::int64_t ox = 0; ox < s.ow; ++ox) {
      const Range rows = s.cover(oy, s.h), columns = s.cover(ox, s.w);
      float sum = 0;
      for (std::int64_t row = rows.begin; row < rows.end; ++row)
        for (std::int64_t column = columns.begin; column < columns.end; ++column) sum += to_f32(x[row * s.w + column]);
      y[oy * s.ow + ox] = as_element(sum * scale, y);
    }
}

/// The windows that cover place `at` of [0, size): the inverse of Window::cover.
Range covered_by(const Window& s, std::int64_t at, std::int64_t outputs) {
  const std::int64_t shifted = at + s.padding;
  const std::int64_t first = shifted < s.kernel ? 0 : (shifted - s.kernel) / s.stride + 1;
  return {first, std::min(shifted / s.stride + 1, outputs)};
}

template <typename T>
void average_grad_plane(const Window& s, const T* dy, T* dx) {
  const float scale = 1.0f / static_cast<float>(s.kernel * s.kernel);
  for (std::int64_t row = 0; row < s.h; ++row)
    for (std::int64_t column = 0; column < s.w; ++column) {
      const Range ys = covered_by(s, row, s.oh), xs = covered_by(s, column, s.ow);
      float sum = 0;
      for (std::int64_t oy = ys.begin; oy < ys.end; ++oy)
        for (std::int64_t ox = xs.begin; ox < xs.end; ++ox) sum += to_f32(dy[oy * s.ow + ox]);
      dx[row * s.w + column] = as_element(sum * scale, dx);
    }
}

int pool_threads(const Signature& signature, const Context& context, int large) {
  const TensorDesc& x = signature.operands[static_cast<std::size_t>(large)];
  const std::int64_t windows = x.shape.rank() == 4 ? x.shape[0] * x.shape[1] : 1;
  return static_cast<int>(
      std::min<std::int64_t>(threads_for(2 * x.bytes(), context.threads), std::max<std::int64_t>(windows, 1)));
}

template <typename T>
Prepared pool_of(const Signature& signature, const Window& s, int threads) {
  const bool max = signature.op == Op::max_pool2d;
  return make_kernel([=](const Call& call) {
    parallel_ranges(s.planes, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t plane = begin; plane < end; ++plane) {
        const T* x = operand<T>(call, 0) + plane * s.h * s.w;
        T* y = operand<T>(call, 1) + plane * s.oh * s.ow;
        if (max)
          max_plane(s, x, y, operand<std::int32_t>(call, 2) + plane * s.oh * s.ow);
        else
          average_plane(s, x, y);
      }
    });
  });
}

std::int64_t plane_stride(std::int64_t elements) { return (elements + 15) / 16 * 16; }

template <typename T>
Prepared pool_grad_of(const Signature& signature, const Window& s, int threads) {
  const bool max = signature.op == Op::max_pool2d_grad;
  return make_kernel([=](const Call& call) {
    parallel(threads, [&](int part, int parts) {
      const Range range = partition(s.planes, part, parts);
      for (std::int64_t plane = range.begin; plane < range.end; ++plane) {
        const T* dy = operand<T>(call, 0) + plane * s.oh * s.ow;
        T* dx = operand<T>(call, max ? 2 : 1) + plane * s.h * s.w;
        if (max)
          max_grad_plane(s, dy, operand<std::int32_t>(call, 1) + plane * s.oh * s.ow, dx,
                         static_cast<float*>(call.workspace) + part * plane_stride(s.h * s.w));
        else
          average_grad_plane(s, dy, dx);
      }
    });
  });
}

}  // namespace

Prepared prepare_pool(const Signature& signature, const Context& context) {
  const bool max = signature.op == Op::max_pool2d;
  expect_operands(signature, max ? 3 : 2);
  const TensorDesc &x = signature.operands[0], &y = signature.operands[1];
  const Window window = window_of(signature, x, y);
  expect_operand(signature, 1, x.dtype, y.elements());
  if (max) expect_operand(signature, 2, DType::i32, y.elements());
  const int threads = pool_threads(signature, context, 0);
  return expect_compute_dtype(signature, 0) ? pool_of<Bf16>(signature, window, threads)
                                            : pool_of<float>(signature, window, threads);
}

Prepared prepare_pool_grad(const Signature& signature, const Context& context) {
  const int dx = signature.op == Op::max_pool2d_grad ? 2 : 1;
  expect_operands(signature, static_cast<std::size_t>(dx + 1));
  const TensorDesc &dy = signature.operands[0], &large = signature.operands[static_cast<std::size_t>(dx)];
  const Window window = window_of(signature, large, dy);
  expect_operand(signature, dx, dy.dtype, large.elements());
  if (dx == 2) expect_operand(signature, 1, DType::i32, dy.elements());
  const int threads = pool_threads(signature, context, dx);
  return expect_compute_dtype(signature, 0) ? pool_grad_of<Bf16>(signature, window, threads)
                                            : pool_grad_of<float>(signature, window, threads);
}

std::int64_t max_pool2d_grad_workspace(const Signature& signature, const Context& context) {
  const Shape& dx = signature.operands[2].shape;
  return pool_threads(signature, context, 2) * plane_stride(dx[2] * dx[3]) * 4;
}

}  // namespace trainer::kernels::cpu
