// The end of a product, for loops files: sums in f32 become rows of C, with bias and what C held.
#pragma once

#include "kernels/cpu/gemm/problem.h"
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

/// `rows` of a whole strip; kStream: past the caches.
template <typename T, typename Bias, bool kAdd, bool kStream>
void finish_whole(const float* sums, std::int64_t rows, const Bias* bias, const T* addend, T* c, std::int64_t ldc) {
  constexpr int kCount = static_cast<int>(gemm::kStrip) / kLanes;
  F32 b[kCount];
#pragma GCC unroll 8
  for (int v = 0; v < kCount; ++v) b[v] = bias ? load(bias + v * kLanes) : F32{};
  for (std::int64_t i = 0; i < rows; ++i) {
    F32 y[kCount];
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      y[v] = load(sums + i * gemm::kStrip + v * kLanes);
      if (bias) y[v] += b[v];
      if constexpr (kAdd) y[v] += load(addend + i * ldc + v * kLanes);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      T* to = c + i * ldc + v * kLanes;
      if constexpr (sizeof(T) == 4)
        kStream ? stream(to, y[v]) : store(to, y[v]);
      else if (v % 2 == 0)
        kStream ? stream(to, y[v], y[v + 1]) : store_both(to, y[v], y[v + 1]);
    }
  }
}

/// `rows` of `columns`, of sums that lie [rows][ld].
template <typename T, typename Bias>
void finish_edge(const float* sums, std::int64_t ld, std::int64_t rows, std::int64_t columns, const Bias* bias,
                 const T* addend, T* c, std::int64_t ldc) {
  for (std::int64_t i = 0; i < rows; ++i)
    for_each_vector(0, columns, [&](std::int64_t j, auto get, auto put) {
      F32 y = get(sums + i * ld + j);
      if (bias) y += get(bias + j);
      if (addend) y += get(addend + i * ldc + j);
      put(c + i * ldc + j, y);
    });
}

template <typename T, typename Bias>
void finish_as(const gemm::Problem& p, const float* sums, std::int64_t row, std::int64_t rows, std::int64_t strip) {
  const std::int64_t column = strip * gemm::kStrip, columns = gemm::least(gemm::kStrip, p.n - column);
  const Bias* bias = p.bias ? static_cast<const Bias*>(p.bias) + column : nullptr;
  const std::int64_t first = row * p.ldc + column;
  T* c = static_cast<T*>(p.c) + first;
  const T* addend = p.addend ? static_cast<const T*>(p.addend) + first : nullptr;
  if (columns < gemm::kStrip) return finish_edge<T, Bias>(sums, gemm::kStrip, rows, columns, bias, addend, c, p.ldc);
  const bool streams = kStreams && p.stream;
  if (addend)
    streams ? finish_whole<T, Bias, true, true>(sums, rows, bias, addend, c, p.ldc)
            : finish_whole<T, Bias, true, false>(sums, rows, bias, addend, c, p.ldc);
  else
    streams ? finish_whole<T, Bias, false, true>(sums, rows, bias, addend, c, p.ldc)
            : finish_whole<T, Bias, false, false>(sums, rows, bias, addend, c, p.ldc);
}

/// Rows [row, row + rows) of strip `strip` of C from sums [rows][kStrip]. Bias: what the inputs hold.
template <typename Bias>
void finish_rows(const gemm::Problem& p, const float* sums, std::int64_t row, std::int64_t rows, std::int64_t strip) {
  p.c_is_f32 ? finish_as<float, Bias>(p, sums, row, rows, strip) : finish_as<Bf16, Bias>(p, sums, row, rows, strip);
}

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
