// Loops file (vec.h). The formulas are in kernels/activations.h.
#include "kernels/cpu/elementwise/elementwise_loops.h"

#include "kernels/cpu/runtime/vec_bf16.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

// Functions are templates over the dtype they serve: bf16 results need no more than 2^-12.
template <typename T>
constexpr bool kQuick = false;
template <>
constexpr bool kQuick<Bf16> = true;

// σ of an argument multiplied by -log2 e: 1 / (1 + 2^t). Its relative error grows with |t| to some 1e-5 where σ is below 1e-30; NaN
// stays NaN through what the caller multiplies by.
template <typename T>
VEC_INLINE F32 sigmoid_log2(F32 scaled) {
  if constexpr (kQuick<T>) return sigmoid_log2_for_bf16(scaled);
  return reciprocal_in_range(1.0f + exp2_in_range(max(min(scaled, splat(125.0f)), splat(-125.0f))));
}
template <typename T>
VEC_INLINE F32 sigmoid_of(F32 x) {
  return sigmoid_log2<T>(x * splat(-1.44269504f));
}

constexpr float kGeluScale = 2 * 0.7978845608f;  // 2 √(2/π): the argument of σ
constexpr float kGeluCube = 0.044715f;
constexpr float kLog2E = 1.44269504f;

template <typename T>
VEC_INLINE F32 gelu_tanh_sigmoid(F32 x, F32 square) {
  return sigmoid_log2<T>(x * fma(square, splat(-kGeluScale * kGeluCube * kLog2E), splat(-kGeluScale * kLog2E)));
}

struct GeluTanh {
  template <typename T>
  VEC_INLINE F32 of(F32 x) { return x * gelu_tanh_sigmoid<T>(x, x * x); }
};
struct GeluErf {
  template <typename T>
  VEC_INLINE F32 of(F32 x) { return 0.5f * x * (1.0f + erf(x * 0.70710678f)); }
};
struct Relu {
  template <typename T>
  VEC_INLINE F32 of(F32 x) { return select(x < F32{}, F32{}, x); }  // NaN passes
};
struct Silu {
  template <typename T>
  VEC_INLINE F32 of(F32 x) { return x * sigmoid_of<T>(x); }
};
struct Tanh {
  template <typename T>
  VEC_INLINE F32 of(F32 x) { return tanh(x); }
};
struct Sigmoid {
  template <typename T>
  VEC_INLINE F32 of(F32 x) { return sigmoid(x); }
};

struct GeluTanhGrad {
  template <typename T>
  VEC_INLINE F32 of(F32 dy, F32 x) {
    const F32 square = x * x;
    const F32 s = gelu_tanh_sigmoid<T>(x, square);
    const F32 slope = x * fma(square, splat(3 * kGeluScale * kGeluCube), splat(kGeluScale));
    // Where s is exactly 0 or 1 the slope may be infinite; s (1 - s) is 0 there.
    const F32 bend = select(abs(x) < splat(20.0f), s * (1.0f - s) * slope, F32{} * x);
    return dy * (s + bend);
  }
};
struct GeluErfGrad {
  template <typename T>
  VEC_INLINE F32 of(F32 dy, F32 x) {
    const F32 density = 0.39894228f * exp(-0.5f * x * x);
    return dy * (0.5f * (1.0f + erf(x * 0.70710678f)) + select(abs(x) < splat(20.0f), x * density, F32{} * x));
  }
};
struct ReluGrad {
  template <typename T>
  VEC_INLINE F32 of(F32 dy, F32 y) { return select(y <= F32{}, F32{}, dy); }
};
struct SiluGrad {
  template <typename T>
  VEC_INLINE F32 of(F32 dy, F32 x) {
    const F32 s = sigmoid_of<T>(x);
    return dy * s * (1.0f + x * (1.0f - s));
  }
};
struct TanhGrad {
  template <typename T>
  VEC_INLINE F32 of(F32 dy, F32 y) { return dy * (1.0f - y * y); }
};
struct SigmoidGrad {
  template <typename T>
  VEC_INLINE F32 of(F32 dy, F32 y) { return dy * y * (1.0f - y); }
};
struct Add {
  template <typename T>
  VEC_INLINE F32 of(F32 a, F32 b) { return a + b; }
};
struct Mul {
  template <typename T>
  VEC_INLINE F32 of(F32 a, F32 b) { return a * b; }
};

template <typename Fn, typename T>
void unary_loop(const T* x, T* y, std::int64_t begin, std::int64_t end) {
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) { store(y + i, Fn::template of<T>(load(x + i))); });
}

template <typename Fn, typename T>
void binary_loop(const T* a, const T* b, T* y, std::int64_t begin, std::int64_t end) {
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) { store(y + i, Fn::template of<T>(load(a + i), load(b + i))); });
}

template <typename Fn, typename T>
void repeated_loop(const T* a, const T* b, T* y, std::int64_t period, std::int64_t begin, std::int64_t end) {
  if (period == 1) {
    const F32 only = splat(to_f32(b[0]));
    for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) { store(y + i, Fn::template of<T>(load(a + i), only)); });
    return;
  }
  while (begin < end) {
    const std::int64_t phase = begin % period, left = period - phase;
    const std::int64_t stop = begin + (left < end - begin ? left : end - begin);
    binary_loop<Fn>(a + begin, b + phase, y + begin, 0, stop - begin);
    begin = stop;
  }
}

template <typename T>
void unary_of(Unary which, const void* x, void* y, std::int64_t begin, std::int64_t end) {
  const T* in = static_cast<const T*>(x);
  T* out = static_cast<T*>(y);
  switch (which) {
    case Unary::gelu_tanh: return unary_loop<GeluTanh>(in, out, begin, end);
    case Unary::gelu_erf: return unary_loop<GeluErf>(in, out, begin, end);
    case Unary::relu: return unary_loop<Relu>(in, out, begin, end);
    case Unary::silu: return unary_loop<Silu>(in, out, begin, end);
    case Unary::tanh: return unary_loop<Tanh>(in, out, begin, end);
    case Unary::sigmoid: return unary_loop<Sigmoid>(in, out, begin, end);
  }
}

template <typename T>
void binary_of(Binary which, const void* a, const void* b, void* y, std::int64_t begin, std::int64_t end) {
  const T *left = static_cast<const T*>(a), *right = static_cast<const T*>(b);
  T* out = static_cast<T*>(y);
  switch (which) {
    case Binary::gelu_tanh_grad: return binary_loop<GeluTanhGrad>(left, right, out, begin, end);
    case Binary::gelu_erf_grad: return binary_loop<GeluErfGrad>(left, right, out, begin, end);
    case Binary::relu_grad: return binary_loop<ReluGrad>(left, right, out, begin, end);
    case Binary::silu_grad: return binary_loop<SiluGrad>(left, right, out, begin, end);
    case Binary::tanh_grad: return binary_loop<TanhGrad>(left, right, out, begin, end);
    case Binary::sigmoid_grad: return binary_loop<SigmoidGrad>(left, right, out, begin, end);
    case Binary::add: return binary_loop<Add>(left, right, out, begin, end);
    case Binary::mul: return binary_loop<Mul>(left, right, out, begin, end);
  }
}

template <typename T>
void repeated_of(Binary which, const void* a, const void* b, void* y, std::int64_t period, std::int64_t begin, std::int64_t end) {
  const T *left = static_cast<const T*>(a), *right = static_cast<const T*>(b);
  T* out = static_cast<T*>(y);
  if (which == Binary::add) return repeated_loop<Add>(left, right, out, period, begin, end);
  return repeated_loop<Mul>(left, right, out, period, begin, end);
}

template <typename T>
void scale_of(const T* x, float factor, T* y, std::int64_t begin, std::int64_t end) {
  const F32 by = splat(factor);
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) { store(y + i, by * load(x + i)); });
}

}  // namespace

void unary(Unary which, bool bf16, const void* x, void* y, std::int64_t begin, std::int64_t end) {
  return bf16 ? unary_of<Bf16>(which, x, y, begin, end) : unary_of<float>(which, x, y, begin, end);
}

void binary(Binary which, bool bf16, const void* a, const void* b, void* y, std::int64_t begin, std::int64_t end) {
  return bf16 ? binary_of<Bf16>(which, a, b, y, begin, end) : binary_of<float>(which, a, b, y, begin, end);
}

void binary_repeated(Binary which, bool bf16, const void* a, const void* b, void* y, std::int64_t period, std::int64_t begin, std::int64_t end) {
  return bf16 ? repeated_of<Bf16>(which, a, b, y, period, begin, end) : repeated_of<float>(which, a, b, y, period, begin, end);
}

void scale(bool bf16, const void* x, float factor, void* y, std::int64_t begin, std::int64_t end) {
  if (bf16) return scale_of(static_cast<const Bf16*>(x), factor, static_cast<Bf16*>(y), begin, end);
  return scale_of(static_cast<const float*>(x), factor, static_cast<float*>(y), begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
