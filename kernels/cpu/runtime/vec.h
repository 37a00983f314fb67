// Vectors of f32 as wide as the instruction set's registers, for the sources that hold hot loops ("loops files").
//
// A loops file is compiled once for each instruction set with ISA_NAMESPACE naming the namespace (portable, avx2,
// avx512; kernels/CMakeLists.txt). It includes nothing of the standard library but <cstdint> and <cstddef>: an inline
// function shared through the linker could otherwise carry AVX instructions into the portable path. All here is always
// inlined.
//
// Accuracy, over all finite arguments whose result is a normal number: exp, log 2 ulp, tanh 3 ulp, sigmoid, erf 4 ulp.
// Results below the normal range are 0. NaN gives NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if !defined(ISA_NAMESPACE)
#error "vec.h is for loops files: see kernels/CMakeLists.txt"
#endif

#define VEC_INLINE [[gnu::always_inline]] static inline

namespace trainer::kernels::cpu::ISA_NAMESPACE {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using F32 = float __attribute__((vector_size(4 * kLanes)));
using I32 = std::int32_t __attribute__((vector_size(4 * kLanes)));  // also the masks that comparisons give: 0 or -1
using U32 = std::uint32_t __attribute__((vector_size(4 * kLanes)));

VEC_INLINE F32 splat(float x) { return x - F32{}; }  // x + 0 would be an addition, for the sake of -0
VEC_INLINE U32 splat_u32(std::uint32_t x) { return U32{} + x; }
VEC_INLINE I32 bits_of(F32 x) { return (I32)x; }
VEC_INLINE F32 from_bits(I32 x) { return (F32)x; }
VEC_INLINE F32 select(I32 mask, F32 yes, F32 no) { return from_bits((mask & bits_of(yes)) | (~mask & bits_of(no))); }
VEC_INLINE F32 abs(F32 x) { return from_bits(bits_of(x) & 0x7FFFFFFF); }
VEC_INLINE F32 copy_sign(F32 magnitude, F32 sign) {
  return from_bits((bits_of(magnitude) & 0x7FFFFFFF) | (bits_of(sign) & INT32_MIN));
}

// As the processors' MIN and MAX: where an argument is NaN the result is the second.
#if defined(__AVX512F__)
VEC_INLINE F32 min(F32 a, F32 b) { return (F32)_mm512_min_ps((__m512)a, (__m512)b); }
VEC_INLINE F32 max(F32 a, F32 b) { return (F32)_mm512_max_ps((__m512)a, (__m512)b); }
VEC_INLINE F32 sqrt(F32 x) { return (F32)_mm512_sqrt_ps((__m512)x); }
VEC_INLINE F32 fma(F32 a, F32 b, F32 c) { return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(__AVX2__)
VEC_INLINE F32 min(F32 a, F32 b) { return (F32)_mm256_min_ps((__m256)a, (__m256)b); }
VEC_INLINE F32 max(F32 a, F32 b) { return (F32)_mm256_max_ps((__m256)a, (__m256)b); }
VEC_INLINE F32 sqrt(F32 x) { return (F32)_mm256_sqrt_ps((__m256)x); }
VEC_INLINE F32 fma(F32 a, F32 b, F32 c) { return (F32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
VEC_INLINE F32 min(F32 a, F32 b) { return select(a < b, a, b); }
VEC_INLINE F32 max(F32 a, F32 b) { return select(a > b, a, b); }
VEC_INLINE F32 sqrt(F32 x) {
  F32 y;
  for (int i = 0; i < kLanes; ++i) y[i] = __builtin_sqrtf(x[i]);
  return y;
}
VEC_INLINE F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }  // rounded twice
#endif

/// 1 / x within 1 ulp or so; infinite for 0.
#if defined(__AVX512F__)
VEC_INLINE F32 reciprocal(F32 x) {
  const F32 r = (F32)_mm512_rcp14_ps((__m512)x);
  const F32 better = fma(r, fma(-x, r, splat(1.0f)), r);
  const I32 exact = (abs(x) < splat(0x1p126f)) & (abs(x) > splat(0x1p-126f));
  return select(exact, better, r);  // of 0 and infinity the step would make NaN
}
#else
VEC_INLINE F32 reciprocal(F32 x) { return 1.0f / x; }
#endif

/// The same for 2^-126 < |x| < 2^126 alone; of NaN, NaN.
#if defined(__AVX512F__)
VEC_INLINE F32 reciprocal_in_range(F32 x) {
  const F32 r = (F32)_mm512_rcp14_ps((__m512)x);
  return fma(r, fma(-x, r, splat(1.0f)), r);
}
VEC_INLINE F32 reciprocal_quick(F32 x) { return (F32)_mm512_rcp14_ps((__m512)x); }  // within 2^-14
#else
VEC_INLINE F32 reciprocal_in_range(F32 x) { return 1.0f / x; }
VEC_INLINE F32 reciprocal_quick(F32 x) { return 1.0f / x; }
#endif

/// first, first + 1, …
VEC_INLINE U32 count_from(std::uint32_t first) {
#if defined(__AVX512F__)
  constexpr U32 kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
  constexpr U32 kLane = {0, 1, 2, 3, 4, 5, 6, 7};
#else
  constexpr U32 kLane = {0, 1, 2, 3};
#endif
  return kLane + first;
}

// ---- memory

VEC_INLINE F32 load(const float* p) {
  F32 x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
VEC_INLINE void store(float* p, F32 x) { __builtin_memcpy(p, &x, sizeof x); }

#if defined(__AVX512F__)
VEC_INLINE F32 widen(__m256i halves) { return (F32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16); }
#if defined(__AVX512BF16__)
VEC_INLINE __m256i narrow(F32 x) {
  return (__m256i)_mm512_cvtneps_pbh((__m512)x);
}  // flushes denormals, whatever the mode
#else
VEC_INLINE __m256i narrow(F32 x) {
  const __m512i bits = (__m512i)x;
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
}
#endif
VEC_INLINE F32 load(const Bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
VEC_INLINE void store(Bf16* p, F32 x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }

VEC_INLINE __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
VEC_INLINE F32 load_first(const float* p, int n) { return (F32)_mm512_maskz_loadu_ps(first(n), p); }
VEC_INLINE F32 load_first(const Bf16* p, int n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }
VEC_INLINE void store_first(float* p, F32 x, int n) { _mm512_mask_storeu_ps(p, first(n), (__m512)x); }
VEC_INLINE void store_first(Bf16* p, F32 x, int n) { _mm256_mask_storeu_epi16(p, first(n), narrow(x)); }
#else
#if defined(__AVX2__)
VEC_INLINE F32 load(const Bf16* p) {
  return (F32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16);
}
VEC_INLINE void store(Bf16* p, F32 x) {
  const __m256i bits = (__m256i)x;
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, (__m256i)_mm256_cmp_ps((__m256)x, (__m256)x, _CMP_UNORD_Q));
  const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(chosen, chosen), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(halves));
}
#else
VEC_INLINE F32 load(const Bf16* p) {
  F32 x;
  for (int i = 0; i < kLanes; ++i) x[i] = to_f32(p[i]);
  return x;
}
VEC_INLINE void store(Bf16* p, F32 x) {
  for (int i = 0; i < kLanes; ++i) p[i] = to_bf16(x[i]);
}
#endif
/// The first n < kLanes elements; the others are 0.
template <typename T>
VEC_INLINE F32 load_first(const T* p, int n) {
  F32 x{};
  for (int i = 0; i < n; ++i) x[i] = to_f32(p[i]);
  return x;
}
VEC_INLINE void store_first(float* p, F32 x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x[i];
}
VEC_INLINE void store_first(Bf16* p, F32 x, int n) {
  for (int i = 0; i < n; ++i) p[i] = to_bf16(x[i]);
}
#endif

/// step(load, store) for whole vectors of [begin, end), and once for what is left: the tail costs one masked step.
/// `step` is generic over how it loads and stores: step(i, [](const auto* p) -> F32, [](auto* p, F32)).
template <typename Step>
VEC_INLINE void for_each_vector(std::int64_t begin, std::int64_t end, Step step) {
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes)
    step(
        i, [](const auto* p) __attribute__((always_inline)) { return load(p); },
        [](auto* p, F32 x) __attribute__((always_inline)) { store(p, x); });
  if (i < end) {
    const int left = static_cast<int>(end - i);
    step(
        i, [left](const auto* p) __attribute__((always_inline)) { return load_first(p, left); },
        [left](auto* p, F32 x) __attribute__((always_inline)) { store_first(p, x, left); });
  }
}

/// x with the lanes from n on set to 0.
VEC_INLINE F32 keep_first(F32 x, int n) { return from_bits(bits_of(x) & ((I32)count_from(0) < n)); }

/// The sum over [0, count) of value(i, load), in four interleaved vectors: the order depends on count alone.
template <typename Value>
VEC_INLINE F32 sum_of(std::int64_t count, Value value) {
  const auto whole = [](const auto* p) __attribute__((always_inline)) { return load(p); };
  F32 a{}, b{}, c{}, d{};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    a += value(i, whole);
    b += value(i + kLanes, whole);
    c += value(i + 2 * kLanes, whole);
    d += value(i + 3 * kLanes, whole);
  }
  for (; i + kLanes <= count; i += kLanes) a += value(i, whole);
  if (i < count) {
    const int left = static_cast<int>(count - i);
    b += keep_first(value(
                        i, [left](const auto* p) __attribute__((always_inline)) { return load_first(p, left); }),
                    left);
  }
  return (a + b) + (c + d);
}

// ---- reductions over lanes, always by halves: the order is fixed

#if defined(__AVX2__)
VEC_INLINE __m128 halves_sum(__m256 x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }
VEC_INLINE __m128 halves_max(__m256 x) { return _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }
VEC_INLINE float sum(__m128 x) {
  const __m128 pair = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
VEC_INLINE float largest(__m128 x) {
  const __m128 pair = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}
#endif
// largest: NaN in a lane may be passed over.
#if defined(__AVX512F__)
VEC_INLINE float sum(F32 x) {
  return sum(halves_sum(_mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1))));
}
VEC_INLINE float largest(F32 x) {
  return largest(halves_max(_mm256_max_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1))));
}
#elif defined(__AVX2__)
VEC_INLINE float sum(F32 x) { return sum(halves_sum((__m256)x)); }
VEC_INLINE float largest(F32 x) { return largest(halves_max((__m256)x)); }
#else
VEC_INLINE float sum(F32 x) { return (x[0] + x[2]) + (x[1] + x[3]); }
VEC_INLINE float largest(F32 x) {
  const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}
#endif

/// The first lane that a mask has set; kLanes if none.
#if defined(__AVX512F__)
VEC_INLINE int first_lane(I32 mask) {
  return __builtin_ctz(static_cast<unsigned>(_mm512_test_epi32_mask((__m512i)mask, (__m512i)mask)) | 1u << kLanes);
}
#elif defined(__AVX2__)
VEC_INLINE int first_lane(I32 mask) {
  return __builtin_ctz(static_cast<unsigned>(_mm256_movemask_ps((__m256)mask)) | 1u << kLanes);
}
#else
VEC_INLINE int first_lane(I32 mask) {
  int lane = 0;
  while (lane < kLanes && mask[lane] == 0) ++lane;
  return lane;
}
#endif

// ---- whole numbers

/// The halves of the 64-bit products of unsigned lanes with m.
#if defined(__AVX512F__)
VEC_INLINE void multiply_wide(U32 a, std::uint32_t m, U32& high, U32& low) {
  const __m512i factor = _mm512_set1_epi32(static_cast<int>(m));
  const __m512i even = _mm512_mul_epu32((__m512i)a, factor);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), factor);
  high = (U32)_mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xAAAA, odd);
  low = (U32)_mm512_mask_mov_epi32(even, 0xAAAA, _mm512_slli_epi64(odd, 32));
}
#elif defined(__AVX2__)
VEC_INLINE void multiply_wide(U32 a, std::uint32_t m, U32& high, U32& low) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int>(m));
  const __m256i even = _mm256_mul_epu32((__m256i)a, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), factor);
  high = (U32)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = (U32)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
#else
VEC_INLINE void multiply_wide(U32 a, std::uint32_t m, U32& high, U32& low) {
  for (int i = 0; i < kLanes; ++i) {
    const std::uint64_t product = std::uint64_t{a[i]} * m;
    high[i] = static_cast<std::uint32_t>(product >> 32);
    low[i] = static_cast<std::uint32_t>(product);
  }
}
#endif

/// a0 b0 a1 b1 … of the lower and of the upper halves.
#if defined(__AVX512F__)
VEC_INLINE U32 interleave_low(U32 a, U32 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
VEC_INLINE U32 interleave_high(U32 a, U32 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif defined(__AVX2__)
VEC_INLINE U32 interleave_low(U32 a, U32 b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
VEC_INLINE U32 interleave_high(U32 a, U32 b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
VEC_INLINE U32 interleave_low(U32 a, U32 b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
VEC_INLINE U32 interleave_high(U32 a, U32 b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

/// Sums in f64 of f32 lanes: 2 · kLanes / 2 running sums, joined in a fixed order.
struct SumF64 {
#if defined(__AVX512F__)
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  [[gnu::always_inline]] inline void add_square(F32 x) {
    const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)),
                  b = _mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1));
    low = _mm512_fmadd_pd(a, a, low);
    high = _mm512_fmadd_pd(b, b, high);
  }
  [[gnu::always_inline]] inline double total() const {
    double lane[8];
    _mm512_storeu_pd(lane, _mm512_add_pd(low, high));
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  }
#elif defined(__AVX2__)
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
  [[gnu::always_inline]] inline void add_square(F32 x) {
    const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)),
                  b = _mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
    low = _mm256_fmadd_pd(a, a, low);
    high = _mm256_fmadd_pd(b, b, high);
  }
  [[gnu::always_inline]] inline double total() const {
    double lane[4];
    _mm256_storeu_pd(lane, _mm256_add_pd(low, high));
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
  }
#else
  double lane[kLanes] = {};
  [[gnu::always_inline]] inline void add_square(F32 x) {
    for (int i = 0; i < kLanes; ++i) lane[i] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  [[gnu::always_inline]] inline double total() const { return (lane[0] + lane[2]) + (lane[1] + lane[3]); }
#endif
};

// ---- functions. Polynomials are minimax fits of our own on the stated intervals.

/// p · 2^n, where n is what adding 1.5 · 2^23 left in the low bits. Unsigned, so that it may wrap: n can be negative,
/// and rows of padding may bring any n.
VEC_INLINE F32 add_to_exponent(F32 p, F32 shifted) { return (F32)((U32)p + ((U32)shifted << 23)); }

/// 2^t for t in [-126, 128), within 2 ulp: t = n + f with |f| <= 1/2, 2^f a polynomial, n added to the exponent.
VEC_INLINE F32 exp2_in_range(F32 t) {
  const F32 magic = splat(0x1.8p23f);  // adding it rounds to an integer, left in the low bits
  const F32 shifted = t + magic;
  const F32 f = t - (shifted - magic);
  F32 p = splat(1.535336196e-4f);
  p = fma(p, f, splat(1.339887502e-3f));
  p = fma(p, f, splat(9.618436918e-3f));
  p = fma(p, f, splat(5.550332367e-2f));
  p = fma(p, f, splat(2.402264774e-1f));
  p = fma(p, f, splat(6.931471825e-1f));
  p = fma(p, f, splat(1.0f));
  return add_to_exponent(p, shifted);
}

/// The same within 2^-18; 2^0 is exactly 1.
VEC_INLINE F32 exp2_in_range_short(F32 t) {
  const F32 magic = splat(0x1.8p23f);
  const F32 shifted = t + magic;
  const F32 f = t - (shifted - magic);
  F32 p = splat(9.582852945e-3f);
  p = fma(p, f, splat(5.590642616e-2f));
  p = fma(p, f, splat(2.402409911e-1f));
  p = fma(p, f, splat(6.931241751e-1f));
  p = fma(p, f, splat(1.0f));
  return add_to_exponent(p, shifted);
}

/// The same within 2^-13, for results that are rounded to bf16.
VEC_INLINE F32 exp2_in_range_quick(F32 t) {
  const F32 magic = splat(0x1.8p23f);
  const F32 shifted = t + magic;
  const F32 f = t - (shifted - magic);
  F32 p = splat(5.517166853e-2f);
  p = fma(p, f, splat(2.426111251e-1f));
  p = fma(p, f, splat(6.932609677e-1f));
  p = fma(p, f, splat(9.999280572e-1f));
  return add_to_exponent(p, shifted);
}

/// e^x for x in [-87.3365, 88.7228]: x = n ln 2 + r, with ln 2 in two parts so that r stays exact.
VEC_INLINE F32 exp_in_range(F32 x) {
  const F32 magic = splat(0x1.8p23f);
  const F32 shifted = fma(x, splat(1.44269504f), magic);
  const F32 n = shifted - magic;
  const F32 r = fma(n, splat(-0x1.7f7d1cp-20f), fma(n, splat(-0x1.62e4p-1f), x));
  F32 p = splat(1.381459879e-3f);
  p = fma(p, r, splat(8.368716575e-3f));
  p = fma(p, r, splat(4.166838899e-2f));
  p = fma(p, r, splat(1.666652113e-1f));
  p = fma(p, r, splat(4.999999404e-1f));
  p = fma(p, r * r, r) + 1.0f;
  return add_to_exponent(p, shifted);
}

VEC_INLINE F32 exp(F32 x) {
  const F32 lowest = splat(-87.33654f), highest = splat(88.72283f);
  F32 y = exp_in_range(max(min(x, highest), lowest));  // NaN becomes a bound here
  y = select(x < lowest, F32{}, y);
  y = select(x > highest, splat(__builtin_inff()), y);
  return select(x == x, y, x);
}

/// 1 / (1 + e^-x).
VEC_INLINE F32 sigmoid(F32 x) {
  // Of e^-|x| <= 1, so that nothing overflows; a negative x takes e^x / (1 + e^x).
  const F32 e = exp(-abs(x));
  const F32 r = reciprocal(1.0f + e);
  return select(x < F32{}, e * r, r);
}

VEC_INLINE F32 tanh(F32 x) {
  const F32 a = abs(x);
  const F32 s = a * a;
  F32 p = splat(-5.717045162e-3f);
  p = fma(p, s, splat(2.065058798e-2f));
  p = fma(p, s, splat(-5.374349654e-2f));
  p = fma(p, s, splat(1.333149076e-1f));
  p = fma(p, s, splat(-3.333328366e-1f));
  const F32 near = fma(p * s, a, a);
  const F32 e = exp_in_range(min(a + a, splat(40.0f)));
  const F32 far = 1.0f - 2.0f * reciprocal(e + 1.0f);
  const F32 y = copy_sign(select(a < splat(0.625f), near, far), x);
  return select(x == x, y, x);
}

VEC_INLINE F32 erf(F32 x) {
  const F32 a = abs(x);
  const F32 s = a * a;
  F32 p = splat(8.382390661e-5f);
  p = fma(p, s, splat(-8.145597531e-4f));
  p = fma(p, s, splat(5.201286171e-3f));
  p = fma(p, s, splat(-2.685949951e-2f));
  p = fma(p, s, splat(1.128369719e-1f));
  p = fma(p, s, splat(-3.761263490e-1f));
  p = fma(p, s, splat(1.128379226f));
  // Beyond: 1 - e^q with q a fit of ln erfc on [0.9, 4]; erf(4) rounds to 1.
  const F32 b = min(a, splat(4.0f));
  F32 q = splat(-2.082852552e-5f);
  q = fma(q, b, splat(4.313925456e-4f));
  q = fma(q, b, splat(-4.156250507e-3f));
  q = fma(q, b, splat(2.508060448e-2f));
  q = fma(q, b, splat(-1.082203686e-1f));
  q = fma(q, b, splat(-6.334008574e-1f));
  q = fma(q, b, splat(-1.129488349f));
  q = fma(q, b, splat(1.692038932e-4f));
  const F32 y = copy_sign(select(a < splat(0.92f), p * a, 1.0f - exp_in_range(q)), x);
  return select(x == x, y, x);
}

/// Natural logarithm; -inf for 0, NaN below.
VEC_INLINE F32 log(F32 x) {
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)); log1p(m - 1) = u - u^2/2 + u^3 q(u).
  const I32 shifted = (I32)((U32)x - splat_u32(0x3F3504F3));  // unsigned: of a negative x, NaN in the end, it wraps
  const I32 exponent = shifted >> 23;
  const F32 u = from_bits((shifted & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
  F32 q = splat(6.915146858e-2f);
  q = fma(q, u, splat(-1.178969592e-1f));
  q = fma(q, u, splat(1.187301651e-1f));
  q = fma(q, u, splat(-1.238436997e-1f));
  q = fma(q, u, splat(1.421865523e-1f));
  q = fma(q, u, splat(-1.666924953e-1f));
  q = fma(q, u, splat(2.000222653e-1f));
  q = fma(q, u, splat(-2.499998659e-1f));
  q = fma(q, u, splat(3.333331048e-1f));
  const F32 s = u * u;
  const F32 n = __builtin_convertvector(exponent, F32);
  F32 y = fma(q * u, s, n * -0x1.bd0106p-13f);  // ln 2 = 0.693359375 - 2.12194440e-4
  y = fma(splat(-0.5f), s, y) + u;
  y = fma(n, splat(0.693359375f), y);
  y = select(x == F32{}, splat(-__builtin_inff()), y);
  y = select(x == splat(__builtin_inff()), x, y);
  y = select(x < F32{}, splat(__builtin_nanf("")), y);
  return select(x == x, y, x);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
