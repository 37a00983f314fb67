// Moving bytes: zero, copies, casts. Bound by memory: a cast reads sizeof(x) and writes sizeof(y) bytes an element;
// four vectors of a thread (of f64 two) are on their way at once, and the wider side of each is 16 bytes, so that a
// warp's accesses lie side by side.
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Vectors of a thread.
template <typename X, typename Y>
constexpr int kEach = sizeof(X) == 8 || sizeof(Y) == 8 ? 2 : 4;

// ---- Device ----

/// The nearest f32, but towards the neighbour with an odd last bit where inexact: rounding that to 16 bits then gives
/// what rounding the f64 itself gives.
__device__ __forceinline__ float round_to_odd(double x) {
  const float near = static_cast<float>(x);
  const double back = static_cast<double>(near);
  if (back == x) return near;
  return __uint_as_float((fabs(back) > fabs(x) ? __float_as_uint(near) - 1 : __float_as_uint(near)) | 1u);
}

template <typename Y, typename X>
__device__ __forceinline__ Y convert(X x) {
  if constexpr (std::is_same_v<Y, double>)
    return static_cast<double>(to_f32(x));
  else if constexpr (!std::is_same_v<X, double>)
    return from_f32<Y>(to_f32(x));
  else if constexpr (std::is_same_v<Y, float>)
    return static_cast<float>(x);
  else
    return from_f32<Y>(round_to_odd(x));
}

template <typename X, typename Y>
constexpr int kCastVector = 16 / static_cast<int>(sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));

// Of 16-bit elements two share a register; f64 stays as it is.
template <typename X, int N>
using In = std::conditional_t<std::is_same_v<X, double>, Vec<X, N>, Packed<X, N>>;

template <typename X, typename Y, int N>
__device__ __forceinline__ void convert_vector(const Packed<X, N>& in, Y* y, std::int64_t at) {
  float v[N];
  widen(in, v);
  if constexpr (std::is_same_v<Y, double>) {
    Vec<double, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = static_cast<double>(v[i]);
    store(y, at, out);
  } else {
    store_packed(y, at, narrow<Y>(v));
  }
}
template <typename Y, int N>
__device__ __forceinline__ void convert_vector(const Vec<double, N>& in, Y* y, std::int64_t at) {
  Vec<Y, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = convert<Y>(in[i]);
  store(y, at, out);
}

template <typename X, typename Y>
__global__ void __launch_bounds__(kThreads) cast_elements(const X* x, Y* y, std::int64_t count) {
  constexpr int kN = kCastVector<X, Y>, kHere = kEach<X, Y>;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads * kHere + threadIdx.x;
  In<X, kN> in[kHere];
#pragma unroll
  for (int k = 0; k < kHere; ++k) {
    const std::int64_t at = first + k * kThreads;
    if ((at + 1) * kN <= count) in[k] = as_vectors<const In<X, kN>>(x)[at];
  }
#pragma unroll
  for (int k = 0; k < kHere; ++k) {
    const std::int64_t at = first + k * kThreads;
    if ((at + 1) * kN <= count) {
      convert_vector(in[k], y, at);
    } else {
      for (std::int64_t i = at * kN; i < count; ++i) y[i] = convert<Y>(x[i]);
    }
  }
}

// ---- Host ----

template <typename Fn>
Prepared with_float(const Signature& signature, int operand, Fn&& fn) {
  switch (signature.operands[static_cast<std::size_t>(operand)].dtype) {
    case DType::f64:
      return fn(double{});
    case DType::f32:
      return fn(float{});
    case DType::bf16:
      return fn(bf16{});
    case DType::f16:
      return fn(f16{});
    case DType::i32:
    case DType::u8:
      break;
  }
  refuse_dtypes(signature, "f64, f32, bf16 and f16");
}

Prepared copy_of(std::int64_t bytes) {
  return make_kernel([bytes](const Call& call) {
    const void* const x = operand<void>(call, 0);
    void* const y = operand<void>(call, 1);
    if (x != y && bytes > 0)
      check(cudaMemcpyAsync(y, x, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream_of(call)),
            "cudaMemcpyAsync");
  });
}

}  // namespace

Prepared prepare_zero(const Signature& signature, const Context&) {
  expect_operands(signature, 1);
  const std::size_t bytes = static_cast<std::size_t>(signature.operands[0].bytes());
  return make_kernel([bytes](const Call& call) {
    if (bytes > 0) check(cudaMemsetAsync(operand<void>(call, 0), 0, bytes, stream_of(call)), "cudaMemsetAsync");
  });
}

Prepared prepare_cast(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  const TensorDesc &x = signature.operands[0], &y = signature.operands[1];
  const std::int64_t count = x.elements();
  expect_operand(signature, 1, y.dtype, count);
  if (x.dtype == y.dtype) return copy_of(x.bytes());
  return with_float(signature, 0, [&]<typename X>(X) {
    return with_float(signature, 1, [&]<typename Y>(Y) -> Prepared {
      if constexpr (std::is_same_v<X, Y>)
        refuse_dtypes(signature, "two dtypes");
      else {
        const Grid grid{.blocks = blocks_for(count, kThreads * kEach<X, Y> * kCastVector<X, Y>), .threads = kThreads};
        return make_kernel([=](const Call& call) {
          launch(call, grid, cast_elements<X, Y>, operand<X>(call, 0), operand<Y>(call, 1), count);
        });
      }
    });
  });
}

}  // namespace trainer::kernels::cuda
