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

// σ of an argument multiplied by -log2 e: 1 / (1 + 2^t). Its relative error grows with |t| to some 1e-5 where σ is
// below 1e-30; NaN stays NaN through what the caller multiplies by.
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
  VEC_INLINE F32 of(F32 x) {
    return x * gelu_tanh_sigmoid<T>(x, x * x);
  }
};
struct GeluErf {
  template <typename T>
  VEC_INLINE F32 of(F32 x) {
    if constexpr (kQuick<T>) return x * normal_cdf_for_bf16(x);
    return 0.5f * x * (1.0f + erf(x * 0.70710678f));
  }
};
struct Relu {
  template <typename T>
  VEC_INLINE F32 of(F32 x) {
    return select(x < F32{}, F32{}, x);
  }  // NaN passes
};
struct Silu {
  template <typename T>
  VEC_INLINE F32 of(F32 x) {
    return x * sigmoid_of<T>(x);
  }
};
struct Tanh {
  template <typename T>
  VEC_INLINE F32 of(F32 x) {
    return tanh(x);
  }
};
struct Sigmoid {
  template <typename T>
  VEC_INLINE F32 of(F32 x) {
    return sigmoid(x);
  }
};
struct Softcap {
  template <typename T>
  VEC_INLINE F32 of(F32 x, F32 cap, F32 inverse) {
    return cap * tanh(x * inverse);
  }
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
    if constexpr (kQuick<T>) {
      // Where 2^t stays at its least, beyond |x| = 13, the density does not count.
      const F32 density = 0.39894228f * exp2_in_range_quick(max(x * x * splat(-0.72134752f), splat(-125.0f)));
      return dy * (normal_cdf_for_bf16(x) + select(abs(x) < splat(20.0f), x * density, F32{} * x));
    }
    const F32 density = 0.39894228f * exp(-0.5f * x * x);
    return dy * (0.5f * (1.0f + erf(x * 0.70710678f)) + select(abs(x) < splat(20.0f), x * density, F32{} * x));
  }
};
struct ReluGrad {
  template <typename T>
  VEC_INLINE F32 of(F32 dy, F32 y) {
    return select(y <= F32{}, F32{}, dy);
  }
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
  VEC_INLINE F32 of(F32 dy, F32 y) {
    return dy * (1.0f - y * y);
  }
};
struct SigmoidGrad {
  template <typename T>
  VEC_INLINE F32 of(F32 dy, F32 y) {
    return dy * y * (1.0f - y);
  }
};
struct SoftcapGrad {
  template <typename T>
  VEC_INLINE F32 of(F32 dy, F32 y, F32 inverse) {
    const F32 t = y * inverse;
    return dy * (1.0f - t * t);
  }
};
struct Add {
  template <typename T>
  VEC_INLINE F32 of(F32 a, F32 b) {
    return a + b;
  }
};
struct Mul {
  template <typename T>
  VEC_INLINE F32 of(F32 a, F32 b) {
    return a * b;
  }
};

// `constants` are what a function takes in addition to the elements.
template <typename Fn, typename T, typename... Constants>
void unary_loop(const T* x, T* y, std::int64_t begin, std::int64_t end, Constants... constants) {
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) {
    store(y + i, Fn::template of<T>(load(x + i), constants...));
  });
}

template <typename Fn, typename T, typename... Constants>
void binary_loop(const T* a, const T* b, T* y, std::int64_t begin, std::int64_t end, Constants... constants) {
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) {
    store(y + i, Fn::template of<T>(load(a + i), load(b + i), constants...));
  });
}

template <typename Fn, typename T>
void repeated_loop(const T* a, const T* b, T* y, std::int64_t period, std::int64_t begin, std::int64_t end) {
  if (period == 1) {
    const F32 only = splat(to_f32(b[0]));
    for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) {
      store(y + i, Fn::template of<T>(load(a + i), only));
    });
    return;
  }
  while (begin < end) {
    const std::int64_t phase = begin % period, left = period - phase;
    const std::int64_t stop = begin + (left < end - begin ? left : end - begin);
    binary_loop<Fn>(a + begin, b + phase, y + begin, 0, stop - begin);
    begin = stop;
  }
}

// False, and nothing done, for an op that has no function here.

template <typename T>
bool unary_of(const Function& f, const T* x, T* y, std::int64_t begin, std::int64_t end) {
  switch (f.op) {
    case Op::gelu:
      f.exact ? unary_loop<GeluErf>(x, y, begin, end) : unary_loop<GeluTanh>(x, y, begin, end);
      return true;
    case Op::relu:
      unary_loop<Relu>(x, y, begin, end);
      return true;
    case Op::silu:
      unary_loop<Silu>(x, y, begin, end);
      return true;
    case Op::tanh:
      unary_loop<Tanh>(x, y, begin, end);
      return true;
    case Op::sigmoid:
      unary_loop<Sigmoid>(x, y, begin, end);
      return true;
    case Op::softcap:
      unary_loop<Softcap>(x, y, begin, end, splat(f.number), splat(1.0f / f.number));
      return true;
    default:
      return false;
  }
}

template <typename T>
bool binary_of(const Function& f, const T* a, const T* b, T* y, std::int64_t begin, std::int64_t end) {
  switch (f.op) {
    case Op::gelu_grad:
      f.exact ? binary_loop<GeluErfGrad>(a, b, y, begin, end) : binary_loop<GeluTanhGrad>(a, b, y, begin, end);
      return true;
    case Op::relu_grad:
      binary_loop<ReluGrad>(a, b, y, begin, end);
      return true;
    case Op::silu_grad:
      binary_loop<SiluGrad>(a, b, y, begin, end);
      return true;
    case Op::tanh_grad:
      binary_loop<TanhGrad>(a, b, y, begin, end);
      return true;
    case Op::sigmoid_grad:
      binary_loop<SigmoidGrad>(a, b, y, begin, end);
      return true;
    case Op::softcap_grad:
      binary_loop<SoftcapGrad>(a, b, y, begin, end, splat(1.0f / f.number));
      return true;
    case Op::add:
      binary_loop<Add>(a, b, y, begin, end);
      return true;
    case Op::mul:
      binary_loop<Mul>(a, b, y, begin, end);
      return true;
    default:
      return false;
  }
}

template <typename T>
bool repeated_of(const Function& f, const T* a, const T* b, T* y, std::int64_t period, std::int64_t begin,
                 std::int64_t end) {
  switch (f.op) {
    case Op::add:
      repeated_loop<Add>(a, b, y, period, begin, end);
      return true;
    case Op::mul:
      repeated_loop<Mul>(a, b, y, period, begin, end);
      return true;
    default:
      return false;
  }
}

template <typename Fn, typename T>
void glu_loop(const T* gate, const T* up, T* y, std::int64_t begin, std::int64_t end) {
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) {
    store(y + i, Fn::template of<T>(load(gate + i)) * load(up + i));
  });
}

// All of an element is read before any of it is written.
template <typename Fn, typename Grad, typename T>
void glu_grad_loop(const T* dy, const T* gate, const T* up, T* dgate, T* dup, std::int64_t begin, std::int64_t end) {
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) {
    const F32 d = load(dy + i), x = load(gate + i), u = load(up + i);
    store(dgate + i, Grad::template of<T>(d * u, x));
    store(dup + i, d * Fn::template of<T>(x));
  });
}

template <typename T>
bool glu_of(const Function& f, const T* gate, const T* up, T* y, std::int64_t begin, std::int64_t end) {
  switch (f.op) {
    case Op::gelu:
      f.exact ? glu_loop<GeluErf>(gate, up, y, begin, end) : glu_loop<GeluTanh>(gate, up, y, begin, end);
      return true;
    case Op::silu:
      glu_loop<Silu>(gate, up, y, begin, end);
      return true;
    default:
      return false;
  }
}

template <typename T>
bool glu_grad_of(const Function& f, const T* dy, const T* gate, const T* up, T* dgate, T* dup, std::int64_t begin,
                 std::int64_t end) {
  switch (f.op) {
    case Op::gelu:
      f.exact ? glu_grad_loop<GeluErf, GeluErfGrad>(dy, gate, up, dgate, dup, begin, end)
              : glu_grad_loop<GeluTanh, GeluTanhGrad>(dy, gate, up, dgate, dup, begin, end);
      return true;
    case Op::silu:
      glu_grad_loop<Silu, SiluGrad>(dy, gate, up, dgate, dup, begin, end);
      return true;
    default:
      return false;
  }
}

template <typename T>
void scale_of(const T* x, float factor, T* y, std::int64_t begin, std::int64_t end) {
  const F32 by = splat(factor);
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) { store(y + i, by * load(x + i)); });
}

}  // namespace

bool unary(const Function& f, bool bf16, const void* x, void* y, std::int64_t begin, std::int64_t end) {
  if (bf16) return unary_of(f, static_cast<const Bf16*>(x), static_cast<Bf16*>(y), begin, end);
  return unary_of(f, static_cast<const float*>(x), static_cast<float*>(y), begin, end);
}

bool binary(const Function& f, bool bf16, const void* a, const void* b, void* y, std::int64_t begin, std::int64_t end) {
  if (bf16)
    return binary_of(f, static_cast<const Bf16*>(a), static_cast<const Bf16*>(b), static_cast<Bf16*>(y), begin, end);
  return binary_of(f, static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(y), begin, end);
}

bool glu(const Function& f, bool bf16, const void* gate, const void* up, void* y, std::int64_t begin,
         std::int64_t end) {
  if (bf16)
    return glu_of(f, static_cast<const Bf16*>(gate), static_cast<const Bf16*>(up), static_cast<Bf16*>(y), begin, end);
  return glu_of(f, static_cast<const float*>(gate), static_cast<const float*>(up), static_cast<float*>(y), begin, end);
}

bool glu_grad(const Function& f, bool bf16, const void* dy, const void* gate, const void* up, void* dgate, void* dup,
              std::int64_t begin, std::int64_t end) {
  const auto run = [&]<typename T>(T) {
    return glu_grad_of(f, static_cast<const T*>(dy), static_cast<const T*>(gate), static_cast<const T*>(up),
                       static_cast<T*>(dgate), static_cast<T*>(dup), begin, end);
  };
  return bf16 ? run(Bf16{}) : run(float{});
}

bool binary_repeated(const Function& f, bool bf16, const void* a, const void* b, void* y, std::int64_t period,
                     std::int64_t begin, std::int64_t end) {
  if (bf16)
    return repeated_of(f, static_cast<const Bf16*>(a), static_cast<const Bf16*>(b), static_cast<Bf16*>(y), period,
                       begin, end);
  return repeated_of(f, static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(y), period,
                     begin, end);
}

void scale(bool bf16, const void* x, float factor, void* y, std::int64_t begin, std::int64_t end) {
  if (bf16) return scale_of(static_cast<const Bf16*>(x), factor, static_cast<Bf16*>(y), begin, end);
  return scale_of(static_cast<const float*>(x), factor, static_cast<float*>(y), begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
