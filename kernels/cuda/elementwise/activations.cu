// Activations and their gradients: one pass over memory, 16 bytes a thread at a time.
#include "kernels/activations.h"

#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// ---- Device ----

__device__ __forceinline__ float sigmoid_of(float x) { return 1.0F / (1.0F + expf(-x)); }

struct GeluTanh {
  static constexpr float kScale = 0.7978845608028654F, kCubic = 0.044715F;  // √(2/π)
  // x σ(2u); for x → −∞ the exponential overflows to ∞ and the quotient is −0.
  __device__ float operator()(float x) const { return x * sigmoid_of(2 * kScale * (x + kCubic * x * x * x)); }
  __device__ float gradient(float x) const {
    const float s = sigmoid_of(2 * kScale * (x + kCubic * x * x * x));
    return s + x * s * (1 - s) * 2 * kScale * (1 + 3 * kCubic * x * x);
  }
};
struct GeluErf {
  __device__ static float normal_cdf(float x) { return 0.5F * erfcf(-x * 0.7071067811865476F); }
  __device__ float operator()(float x) const { return x * normal_cdf(x); }
  __device__ float gradient(float x) const { return normal_cdf(x) + x * 0.3989422804014327F * expf(-0.5F * x * x); }
};
struct Relu {
  __device__ float operator()(float x) const { return x > 0 || x != x ? x : 0.0F; }
  __device__ float gradient(float y) const { return y > 0 || y != y ? 1.0F : 0.0F; }
};
struct Silu {
  __device__ float operator()(float x) const { return x * sigmoid_of(x); }
  __device__ float gradient(float x) const {
    const float s = sigmoid_of(x);
    return s * (1 + x * (1 - s));
  }
};
struct Tanh {
  __device__ float operator()(float x) const { return tanhf(x); }
  __device__ float gradient(float y) const { return 1 - y * y; }
};
struct Sigmoid {
  __device__ float operator()(float x) const { return sigmoid_of(x); }
  __device__ float gradient(float y) const { return y * (1 - y); }
};
struct Softcap {
  float cap, inverse;
  __device__ float operator()(float x) const { return cap * tanhf(x * inverse); }
  __device__ float gradient(float y) const {
    const float t = y * inverse;
    return 1 - t * t;
  }
};

// y may be x.
template <typename F, typename T>
__global__ void __launch_bounds__(kThreads) forward(F f, const T* x, T* y, std::int64_t count) {
  constexpr int kN = kVector<T>;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kN;
  if (first + kN <= count) {
    Vec<T, kN> v = load<kN>(x, first / kN);
#pragma unroll
    for (int i = 0; i < kN; ++i) v[i] = from_f32<T>(f(to_f32(v[i])));
    store(y, first / kN, v);
  } else {
    for (std::int64_t i = first; i < count; ++i) y[i] = from_f32<T>(f(to_f32(x[i])));
  }
}

// dx = dy f'(saved); dx may be either.
template <typename F, typename T>
__global__ void __launch_bounds__(kThreads) backward(F f, const T* dy, const T* saved, T* dx, std::int64_t count) {
  constexpr int kN = kVector<T>;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kN;
  if (first + kN <= count) {
    const Vec<T, kN> s = load<kN>(saved, first / kN);
    Vec<T, kN> v = load<kN>(dy, first / kN);
#pragma unroll
    for (int i = 0; i < kN; ++i) v[i] = from_f32<T>(to_f32(v[i]) * f.gradient(to_f32(s[i])));
    store(dx, first / kN, v);
  } else {
    for (std::int64_t i = first; i < count; ++i) dx[i] = from_f32<T>(to_f32(dy[i]) * f.gradient(to_f32(saved[i])));
  }
}

// y may be either.
template <typename F, typename T>
__global__ void __launch_bounds__(kThreads) glu_forward(F f, const T* gate, const T* up, T* y, std::int64_t count) {
  constexpr int kN = kVector<T>;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kN;
  if (first + kN <= count) {
    const Vec<T, kN> u = load<kN>(up, first / kN);
    Vec<T, kN> v = load<kN>(gate, first / kN);
#pragma unroll
    for (int i = 0; i < kN; ++i) v[i] = from_f32<T>(f(to_f32(v[i])) * to_f32(u[i]));
    store(y, first / kN, v);
  } else {
    for (std::int64_t i = first; i < count; ++i) y[i] = from_f32<T>(f(to_f32(gate[i])) * to_f32(up[i]));
  }
}

// dgate and dup may each be an operand: a thread reads all of its elements before it writes one.
template <typename F, typename T>
__global__ void __launch_bounds__(kThreads)
    glu_backward(F f, const T* dy, const T* gate, const T* up, T* dgate, T* dup, std::int64_t count) {
  constexpr int kN = kVector<T>;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kN;
  if (first + kN <= count) {
    Vec<T, kN> d = load<kN>(dy, first / kN), g = load<kN>(gate, first / kN);
    const Vec<T, kN> u = load<kN>(up, first / kN);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const float dyi = to_f32(d[i]), x = to_f32(g[i]);
      g[i] = from_f32<T>(dyi * to_f32(u[i]) * f.gradient(x));
      d[i] = from_f32<T>(dyi * f(x));
    }
    store(dgate, first / kN, g);
    store(dup, first / kN, d);
  } else {
    for (std::int64_t i = first; i < count; ++i) {
      const float dyi = to_f32(dy[i]), x = to_f32(gate[i]), u = to_f32(up[i]);
      dgate[i] = from_f32<T>(dyi * u * f.gradient(x));
      dup[i] = from_f32<T>(dyi * f(x));
    }
  }
}

// ---- Host ----

template <typename Fn>
decltype(auto) with_function(const Signature& signature, Fn&& fn) {
  switch (signature.op) {
    case Op::gelu:
    case Op::gelu_grad:
      return gelu_is_tanh(signature) ? fn(GeluTanh{}) : fn(GeluErf{});
    case Op::relu:
    case Op::relu_grad:
      return fn(Relu{});
    case Op::silu:
    case Op::silu_grad:
      return fn(Silu{});
    case Op::tanh:
    case Op::tanh_grad:
      return fn(Tanh{});
    case Op::sigmoid:
    case Op::sigmoid_grad:
      return fn(Sigmoid{});
    case Op::softcap:
    case Op::softcap_grad: {
      const float cap = activation_number(signature);
      return fn(Softcap{cap, 1 / cap});
    }
    default:
      UNREACHABLE(describe(signature) + " is no activation");
  }
}

// With the activation of a glu.
template <typename Fn>
decltype(auto) with_gate(const Signature& signature, Fn&& fn) {
  if (!glu_is_gelu(signature)) return fn(Silu{});
  return gelu_is_tanh(signature) ? fn(GeluTanh{}) : fn(GeluErf{});
}

template <typename T>
Grid grid_for(std::int64_t count) {
  return {.blocks = blocks_for(count, kThreads * kVector<T>), .threads = kThreads};
}

}  // namespace

Prepared prepare_activation(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  expect_alike(signature, {0, 1});
  const std::int64_t count = signature.operands[0].elements();
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) {
    return with_function(signature, [&]<typename F>(F f) -> Prepared {
      return make_kernel([count, f](const Call& call) {
        launch(call, grid_for<T>(count), forward<F, T>, f, operand<T>(call, 0), operand<T>(call, 1), count);
      });
    });
  });
}

Prepared prepare_activation_grad(const Signature& signature, const Context&) {
  expect_operands(signature, 3);
  expect_alike(signature, {0, 1, 2});
  const std::int64_t count = signature.operands[0].elements();
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) {
    return with_function(signature, [&]<typename F>(F f) -> Prepared {
      return make_kernel([count, f](const Call& call) {
        launch(call, grid_for<T>(count), backward<F, T>, f, operand<T>(call, 0), operand<T>(call, 1),
               operand<T>(call, 2), count);
      });
    });
  });
}

Prepared prepare_glu(const Signature& signature, const Context&) {
  expect_operands(signature, 3);
  expect_alike(signature, {0, 1, 2});
  const std::int64_t count = signature.operands[0].elements();
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) {
    return with_gate(signature, [&]<typename F>(F f) -> Prepared {
      return make_kernel([count, f](const Call& call) {
        launch(call, grid_for<T>(count), glu_forward<F, T>, f, operand<T>(call, 0), operand<T>(call, 1),
               operand<T>(call, 2), count);
      });
    });
  });
}

Prepared prepare_glu_grad(const Signature& signature, const Context&) {
  expect_operands(signature, 5);
  expect_alike(signature, {0, 1, 2, 3, 4});
  const std::int64_t count = signature.operands[0].elements();
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) {
    return with_gate(signature, [&]<typename F>(F f) -> Prepared {
      return make_kernel([count, f](const Call& call) {
        launch(call, grid_for<T>(count), glu_backward<F, T>, f, operand<T>(call, 0), operand<T>(call, 1),
               operand<T>(call, 2), operand<T>(call, 3), operand<T>(call, 4), count);
      });
    });
  });
}

}  // namespace trainer::kernels::cuda
