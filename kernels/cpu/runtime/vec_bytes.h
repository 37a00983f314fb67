// Bytes and halves of words in memory as lanes of whole numbers, and back. For loops files.
#pragma once

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {

#if defined(__AVX512F__)
VEC_INLINE I32 load_bytes(const unsigned char* p) {
  return (I32)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// The lowest byte of each lane.
VEC_INLINE void store_bytes(unsigned char* p, I32 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8((__m512i)x));
}
/// The upper half of each lane.
VEC_INLINE void store_upper(Bf16* p, U32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)x, 16)));
}
#elif defined(__AVX2__)
VEC_INLINE I32 load_bytes(const unsigned char* p) {
  return (I32)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
VEC_INLINE void store_bytes(unsigned char* p, I32 x) {
  const __m256i low = _mm256_shuffle_epi8((__m256i)x, _mm256_set1_epi32(0x0C080400));
  const int halves[2] = {_mm_cvtsi128_si32(_mm256_castsi256_si128(low)),
                         _mm_cvtsi128_si32(_mm256_extracti128_si256(low, 1))};
  __builtin_memcpy(p, halves, 8);
}
VEC_INLINE void store_upper(Bf16* p, U32 x) {
  const __m256i upper = _mm256_srli_epi32((__m256i)x, 16);
  const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(halves));
}
#else
VEC_INLINE I32 load_bytes(const unsigned char* p) {
  I32 x;
  for (int i = 0; i < kLanes; ++i) x[i] = p[i];
  return x;
}
VEC_INLINE void store_bytes(unsigned char* p, I32 x) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<unsigned char>(x[i] & 0xFF);
}
VEC_INLINE void store_upper(Bf16* p, U32 x) {
  for (int i = 0; i < kLanes; ++i) p[i].bits = static_cast<std::uint16_t>(x[i] >> 16);
}
#endif

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
