// Pooling, cut over planes: the loops are in pool_loops.h. The gradient of an average stays plain: few nets have it.
#include "kernels/pool.h"

#include <algorithm>

#include "engine/core/op_record.h"
#include "kernels/bf16.h"
#include "kernels/cpu/convolution/pool_loops.h"
#include "kernels/cpu/convolution/rounded.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

struct Pool {
  std::int64_t planes = 0;
  PoolPlane plane;
};

/// From the larger (x or dx) and the smaller (y or dy) operand.
Pool pool_of(const Signature& signature, const TensorDesc& large, const TensorDesc& small) {
  const Shape &x = large.shape, &y = small.shape;
  CHECK(x.rank() == 4 && y.rank() == 4, describe(signature) + " takes [n, ch, h, w]");
  const Pool pool{x[0] * x[1],
                  {large.dtype == DType::bf16, x[2], x[3], y[2], y[3], integer(signature, "kernel"),
                   integer(signature, "stride"), integer(signature, "padding")}};
  const PoolPlane& s = pool.plane;
  const auto outputs = [&](std::int64_t size) { return (size + 2 * s.padding - s.kernel) / s.stride + 1; };
  CHECK(s.padding * 2 <= s.kernel, "a pool's padding is at most half its kernel");
  CHECK(pool.planes == y[0] * y[1] && outputs(s.h) == s.oh && outputs(s.w) == s.ow,
        describe(signature) + ": shapes do not match kernel, stride and padding");
  return pool;
}

/// The windows that cover place `at` of [0, size).
Range covered_by(const PoolPlane& s, std::int64_t at, std::int64_t outputs) {
  const std::int64_t shifted = at + s.padding;
  const std::int64_t first = shifted < s.kernel ? 0 : (shifted - s.kernel) / s.stride + 1;
  return {first, std::min(shifted / s.stride + 1, outputs)};
}

template <typename T>
void average_grad_plane(const PoolPlane& s, const T* dy, T* dx) {
  const float scale = 1.0f / static_cast<float>(s.kernel * s.kernel);
  for (std::int64_t row = 0; row < s.h; ++row)
    for (std::int64_t column = 0; column < s.w; ++column) {
      const Range ys = covered_by(s, row, s.oh), xs = covered_by(s, column, s.ow);
      float sum = 0;
      for (std::int64_t oy = ys.begin; oy < ys.end; ++oy)
        for (std::int64_t ox = xs.begin; ox < xs.end; ++ox) sum += to_f32(dy[oy * s.ow + ox]);
      dx[row * s.w + column] = rounded_as(sum * scale, dx);
    }
}

int pool_threads(const Signature& signature, const Context& context, int large) {
  const TensorDesc& x = signature.operands[static_cast<std::size_t>(large)];
  const std::int64_t windows = x.shape.rank() == 4 ? x.shape[0] * x.shape[1] : 1;
  return static_cast<int>(
      std::min<std::int64_t>(threads_for(2 * x.bytes(), context.threads), std::max<std::int64_t>(windows, 1)));
}

template <typename T>
T* plane_of(const Call& call, int index, std::int64_t plane, std::int64_t elements) {
  return operand<T>(call, index) + plane * elements;
}

template <typename T>
Prepared forward_of(const Signature& signature, const Pool& pool, Isa isa, int threads) {
  const bool max = signature.op == Op::max_pool2d;
  return make_kernel([=, max_plane = CHOOSE_BY_ISA(isa, max_pool_plane),
                      average_plane = CHOOSE_BY_ISA(isa, average_pool_plane)](const Call& call) {
    const PoolPlane& s = pool.plane;
    const std::int64_t inputs = s.h * s.w, outputs = s.oh * s.ow;
    parallel_ranges(pool.planes, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T* x = plane_of<T>(call, 0, i, inputs);
        T* y = plane_of<T>(call, 1, i, outputs);
        max ? max_plane(s, x, y, plane_of<std::int32_t>(call, 2, i, outputs)) : average_plane(s, x, y);
      }
    });
  });
}

std::int64_t plane_stride(const PoolPlane& s) { return s.bf16 && s.overlaps() ? (s.h * s.w + 15) / 16 * 16 : 0; }

template <typename T>
Prepared gradient_of(const Signature& signature, const Pool& pool, Isa isa, int threads) {
  const bool max = signature.op == Op::max_pool2d_grad;
  return make_kernel([=, max_grad_plane = CHOOSE_BY_ISA(isa, max_pool_grad_plane)](const Call& call) {
    const PoolPlane& s = pool.plane;
    const std::int64_t inputs = s.h * s.w, outputs = s.oh * s.ow;
    parallel(threads, [&](int part, int parts) {
      const Range range = partition(pool.planes, part, parts);
      float* sums = static_cast<float*>(call.workspace) + part * plane_stride(s);
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        const T* dy = plane_of<T>(call, 0, i, outputs);
        T* dx = plane_of<T>(call, max ? 2 : 1, i, inputs);
        max ? max_grad_plane(s, dy, plane_of<std::int32_t>(call, 1, i, outputs), dx, sums)
            : average_grad_plane(s, dy, dx);
      }
    });
  });
}

}  // namespace

Prepared prepare_pool(const Signature& signature, const Context& context) {
  const bool max = signature.op == Op::max_pool2d;
  expect_operands(signature, max ? 3 : 2);
  const TensorDesc &x = signature.operands[0], &y = signature.operands[1];
  const Pool pool = pool_of(signature, x, y);
  expect_operand(signature, 1, x.dtype, y.elements());
  if (max) expect_operand(signature, 2, DType::i32, y.elements());
  const int threads = pool_threads(signature, context, 0);
  return expect_compute_dtype(signature, 0) ? forward_of<Bf16>(signature, pool, context.isa, threads)
                                            : forward_of<float>(signature, pool, context.isa, threads);
}

Prepared prepare_pool_grad(const Signature& signature, const Context& context) {
  const int dx = signature.op == Op::max_pool2d_grad ? 2 : 1;
  expect_operands(signature, static_cast<std::size_t>(dx + 1));
  const TensorDesc &dy = signature.operands[0], &large = signature.operands[static_cast<std::size_t>(dx)];
  const Pool pool = pool_of(signature, large, dy);
  expect_operand(signature, dx, dy.dtype, large.elements());
  if (dx == 2) expect_operand(signature, 1, DType::i32, dy.elements());
  const int threads = pool_threads(signature, context, dx);
  return expect_compute_dtype(signature, 0) ? gradient_of<Bf16>(signature, pool, context.isa, threads)
                                            : gradient_of<float>(signature, pool, context.isa, threads);
}

std::int64_t max_pool2d_grad_workspace(const Signature& signature, const Context& context) {
  const Pool pool = pool_of(signature, signature.operands[2], signature.operands[0]);
  return pool_threads(signature, context, 2) * plane_stride(pool.plane) * 4;
}

}  // namespace trainer::kernels::cpu
