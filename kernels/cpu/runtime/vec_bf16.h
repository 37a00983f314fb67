// Functions for results that are rounded to bf16 at once: within 2^-12 unless they say otherwise, by fewer instructions
// than those of vec.h. For loops files.
#pragma once

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {

/// 1 / (1 + 2^t) for any t. Where the processor splits and scales floats itself, no bounds are needed: 2^t is 2^⌊t⌋
/// times a polynomial in t − ⌊t⌋, and its overflow gives 0.
#if defined(__AVX512F__)
VEC_INLINE F32 sigmoid_log2_for_bf16(F32 t) {
  const F32 f = (F32)_mm512_reduce_ps((__m512)t, _MM_FROUND_TO_NEG_INF);
  F32 p = splat(7.802452147e-2f);
  p = fma(p, f, splat(2.260671556e-1f));
  p = fma(p, f, splat(6.958335638e-1f));
  p = fma(p, f, splat(9.999251962e-1f));
  return reciprocal_quick(1.0f + (F32)_mm512_scalef_ps((__m512)p, (__m512)t));
}
#else
VEC_INLINE F32 sigmoid_log2_for_bf16(F32 t) {
  return reciprocal_quick(1.0f + exp2_in_range_quick(max(min(t, splat(125.0f)), splat(-125.0f))));
}
#endif

/// Φ(x) of the normal distribution within 2^-11 of it for x ≥ −5.5, where Φ = 2e-8; below within 2e-8. A sigmoid, whose
/// argument log2((1 − Φ) / Φ) is odd and almost a cubic: a fit of it on [0, 5.5].
VEC_INLINE F32 normal_cdf_for_bf16(F32 x) {
  const F32 s = min(x * x, splat(30.25f));
  F32 p = splat(-9.418340392e-10f);
  p = fma(p, s, splat(1.031458389e-07f));
  p = fma(p, s, splat(-4.293876784e-06f));
  p = fma(p, s, splat(7.177906101e-05f));
  p = fma(p, s, splat(6.199362659e-04f));
  p = fma(p, s, splat(-1.061901653e-01f));
  p = fma(p, s, splat(-2.301209888f));
  return sigmoid_log2_for_bf16(x * p);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
