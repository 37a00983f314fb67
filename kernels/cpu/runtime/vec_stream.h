// Memory beside the caches, for loops files: stores that pass them by, and lines that are asked for before they are
// read.
#pragma once

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

/// Two vectors as bf16, one after the other.
#if defined(__AVX512F__)
VEC_INLINE __m512i narrow_both(F32 low, F32 high) {
  if (__builtin_expect(_mm512_cmp_ps_mask((__m512)low, (__m512)high, _CMP_UNORD_Q) != 0, 0))
    return _mm512_inserti64x4(_mm512_castsi256_si512(narrow(low)), narrow(high), 1);
  const U32 a = (U32)low, b = (U32)high;
  const __m512i rounded_a = (__m512i)(a + ((a >> 16) & 1) + 0x7FFF),
                rounded_b = (__m512i)(b + ((b >> 16) & 1) + 0x7FFF);
  using H32 = std::uint16_t __attribute__((vector_size(64)));
  constexpr H32 kUpperHalves = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(rounded_a, (__m512i)kUpperHalves, rounded_b);
}
VEC_INLINE void store_both(Bf16* p, F32 low, F32 high) { _mm512_storeu_si512(p, narrow_both(low, high)); }
#else
VEC_INLINE void store_both(Bf16* p, F32 low, F32 high) { store(p, low), store(p + kLanes, high); }
#endif

/// Stores that pass the caches by, where the instruction set has them. REQUIRES: p at a multiple of the vector's bytes.
#if defined(__AVX512F__)
VEC_INLINE void stream(float* p, F32 x) { _mm512_stream_ps(p, (__m512)x); }
VEC_INLINE void stream(Bf16* p, F32 low, F32 high) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), narrow_both(low, high));
}
/// Orders streamed stores before whatever tells other threads of them.
VEC_INLINE void fence() { _mm_sfence(); }
constexpr bool kStreams = true;
#else
VEC_INLINE void stream(float* p, F32 x) { store(p, x); }
VEC_INLINE void stream(Bf16* p, F32 low, F32 high) { store_both(p, low, high); }
VEC_INLINE void fence() {}
constexpr bool kStreams = false;
#endif

/// Asks for what lies a KiB behind p: of several arrays that are read side by side the processor foresees too little.
template <typename T>
VEC_INLINE void ask_ahead(const T* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(p) + 1024);
}

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
