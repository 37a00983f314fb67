// add, mul, scale, sum_leading and bias_grad. Bound by memory. add and mul read a and b (a repeated b once, from the
// caches after that) and write y, two vectors of 16 bytes of each on their way a thread, as scale does of x and y; the
// sums read x once (column_sums.cuh, plane_sums.cuh).
#include <algorithm>

#include "engine/core/op_record.h"
#include "kernels/arithmetic.h"
#include "kernels/bias_grad.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/reduction/column_sums.cuh"
#include "kernels/cuda/reduction/plane_sums.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kEach = 2;  // vectors of a thread

// ---- Device ----

template <bool Product>
__device__ __forceinline__ float combined(float a, float b) {
  return Product ? a * b : a + b;
}

// y may be a. Whole: b is as large as a. Else a's elements lie over b's again and again, and vectors of b are whole
// ones, `period` of them.
template <bool Product, bool Whole, typename T>
__global__ void __launch_bounds__(kThreads) combine(const T* a, const T* b, T* y, std::int64_t count, Divisor period) {
  constexpr int kN = kVector<T>;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads * kEach + threadIdx.x;
  Packed<T, kN> left[kEach], right[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const std::int64_t at = first + k * kThreads;
    if ((at + 1) * kN > count) continue;
    left[k] = load_packed<kN>(a, at);
    right[k] = load_packed<kN>(b, Whole ? at : period(at).rest);
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const std::int64_t at = first + k * kThreads;
    if ((at + 1) * kN <= count) {
      float p[kN], q[kN];
      widen(left[k], p);
      widen(right[k], q);
#pragma unroll
      for (int i = 0; i < kN; ++i) p[i] = combined<Product>(p[i], q[i]);
      store_packed(y, at, narrow<T>(p));
    } else if (at * kN < count) {
      const std::int64_t from = Whole ? at : period(at).rest;
      for (int i = 0; at * kN + i < count; ++i)
        y[at * kN + i] = from_f32<T>(combined<Product>(to_f32(a[at * kN + i]), to_f32(b[from * kN + i])));
    }
  }
}

// The same where b's length is no whole number of vectors: b's elements one by one.
template <bool Product, typename T>
__global__ void __launch_bounds__(kThreads)
    combine_odd(const T* a, const T* b, T* y, std::int64_t count, Divisor period) {
  constexpr int kN = kVector<T>;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x, first = at * kN;
  if (first >= count) return;
  std::int64_t place = period(first).rest;
  if (first + kN <= count) {
    float v[kN];
    widen(load_packed<kN>(a, at), v);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      v[i] = combined<Product>(v[i], to_f32(b[place]));
      if (++place == period.by()) place = 0;
    }
    store_packed(y, at, narrow<T>(v));
  } else {
    for (std::int64_t i = first; i < count; ++i) {
      y[i] = from_f32<T>(combined<Product>(to_f32(a[i]), to_f32(b[place])));
      if (++place == period.by()) place = 0;
    }
  }
}

// y may be x.
template <typename T>
__global__ void __launch_bounds__(kThreads) scale(const T* x, float factor, T* y, std::int64_t count) {
  constexpr int kN = kVector<T>;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads * kEach + threadIdx.x;
  Packed<T, kN> held[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const std::int64_t at = first + k * kThreads;
    if ((at + 1) * kN <= count) held[k] = load_packed<kN>(x, at);
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const std::int64_t at = first + k * kThreads;
    if ((at + 1) * kN <= count) {
      float v[kN];
      widen(held[k], v);
#pragma unroll
      for (int i = 0; i < kN; ++i) v[i] *= factor;
      store_packed(y, at, narrow<T>(v));
    } else {
      for (std::int64_t i = at * kN; i < count; ++i) y[i] = from_f32<T>(to_f32(x[i]) * factor);
    }
  }
}

// ---- Host ----

/// Raises Bug unless `small` is `large` or its last dims.
void expect_last_dims(const Signature& signature, const Shape& large, const Shape& small) {
  bool fits = small.rank() <= large.rank();
  for (int dim = 1; fits && dim <= small.rank(); ++dim) fits = small[-dim] == large[-dim];
  CHECK(fits, describe(signature) + ": one shape must be the other's last dims");
}

template <bool Product, typename T>
Prepared combine_of(std::int64_t count, std::int64_t period) {
  const bool whole = period == count, odd = !whole && !in_vectors<T>(period);
  const auto kernel = odd ? combine_odd<Product, T> : whole ? combine<Product, true, T> : combine<Product, false, T>;
  const Grid grid{.blocks = blocks_for(count, kThreads * kVector<T> * (odd ? 1 : kEach)), .threads = kThreads};
  const Divisor each(whole || odd ? period : period / kVector<T>);
  return make_kernel([=](const Call& call) {
    launch(call, grid, kernel, operand<T>(call, 0), operand<T>(call, 1), operand<T>(call, 2), count, each);
  });
}

}  // namespace

Prepared prepare_add_mul(const Signature& signature, const Context&) {
  expect_operands(signature, 3);
  expect_alike(signature, {0, 2});
  const TensorDesc &a = signature.operands[0], &b = signature.operands[1];
  const std::int64_t count = a.elements(), period = b.elements();
  expect_operand(signature, 1, a.dtype, period);
  expect_last_dims(signature, a.shape, b.shape);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) {
    return signature.op == Op::mul ? combine_of<true, T>(count, period) : combine_of<false, T>(count, period);
  });
}

Prepared prepare_scale(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  expect_alike(signature, {0, 1});
  const std::int64_t count = signature.operands[0].elements();
  const float factor = static_cast<float>(real(signature, "factor"));
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    const Grid grid{.blocks = blocks_for(count, kThreads * kVector<T> * kEach), .threads = kThreads};
    return make_kernel([=](const Call& call) {
      launch(call, grid, scale<T>, operand<T>(call, 0), factor, operand<T>(call, 1), count);
    });
  });
}

Prepared prepare_sum_leading(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  const TensorDesc &x = signature.operands[0], &y = signature.operands[1];
  expect_operand(signature, 1, x.dtype, y.elements());
  expect_last_dims(signature, x.shape, y.shape);
  const std::int64_t columns = y.elements(), rows = columns == 0 ? 0 : x.elements() / columns;
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    const ColumnCut cut(x.dtype, rows, columns, context.units);
    return make_kernel([cut](const Call& call) {
      launch_column_sums(call, cut, operand<T>(call, 0), operand<T>(call, 1), static_cast<float*>(call.workspace),
                         false);
    });
  });
}

Prepared prepare_bias_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  const BiasGradSizes z = bias_grad_sizes(signature);
  CHECK(z.inner == 1 || std::max({z.columns, z.inner, z.rows * z.inner}) < std::int64_t{1} << 30,
        describe(signature) + ": elements of a plane are counted in 32 bits");
  const bool accumulate = accumulates(signature);
  const DType reduce = expect_reduce_dtype(signature, 1);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) {
    return with_reduce_type(reduce, [&]<typename R>(R) -> Prepared {
      const ColumnCut cut(signature.operands[0].dtype, z.rows, z.columns, context.units);
      return make_kernel([z, cut, accumulate](const Call& call) {
        const T* dy = operand<T>(call, 0);
        R* dbias = operand<R>(call, 1);
        if (z.inner == 1)
          launch_column_sums(call, cut, dy, dbias, static_cast<float*>(call.workspace), accumulate);
        else
          launch_plane_sums(call, dy, dbias, static_cast<int>(z.rows), static_cast<int>(z.columns),
                            static_cast<int>(z.inner), accumulate);
      });
    });
  });
}

}  // namespace trainer::kernels::cuda
