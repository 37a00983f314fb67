// Blocks of a quantized B (kernels/quantized.h) as f32, for loops files: what a product reads next is decoded into
// scratch that stays in cache.
#pragma once

#include "kernels/cpu/gemm/b_block.h"
#include "kernels/cpu/gemm/problem.h"
#include "kernels/cpu/runtime/transpose.h"
#include "kernels/quantized.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr std::int64_t kQuantizedBlock = 64, kQuantizedGroup = 256, kHalf = kQuantizedBlock / 2;

/// kLanes bytes.
VEC_INLINE U32 load_bytes(const unsigned char* p) {
#if defined(__AVX512F__)
  return (U32)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (U32)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  U32 x{};
  for (int i = 0; i < kLanes; ++i) x[i] = p[i];
  return x;
#endif
}

VEC_INLINE F32 nf4_values(U32 codes) {
#if defined(__AVX512F__)
  return (F32)_mm512_permutexvar_ps((__m512i)codes, _mm512_loadu_ps(kNf4Values));
#elif defined(__AVX2__)
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(kNf4Values), (__m256i)codes),
               high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(kNf4Values + 8), (__m256i)codes);
  return (F32)_mm256_blendv_ps(low, high, (__m256)(codes << 28));
#else
  F32 x{};
  for (int i = 0; i < kLanes; ++i) x[i] = kNf4Values[codes[i]];
  return x;
#endif
}

/// kLanes elements of a row before they are scaled, from `column`, a multiple of kLanes. `row`: its codes.
template <bool kNf4>
VEC_INLINE F32 decoded(const unsigned char* row, std::int64_t column) {
  if constexpr (kNf4) {
    const std::int64_t inside = column % kQuantizedBlock;
    const U32 bytes = load_bytes(row + column / kQuantizedBlock * kHalf + inside % kHalf);
    return nf4_values(inside < kHalf ? bytes & 15 : bytes >> 4);
  } else {
    const I32 codes = (I32)(load_bytes(row + column) << 24) >> 24;
    return __builtin_convertvector(codes, F32);
  }
}

template <bool kNf4>
VEC_INLINE float scale_of(const gemm::QuantizedMatrix& w, std::int64_t row, std::int64_t block) {
  if constexpr (kNf4) {
    const float* group = w.groups + (row / kQuantizedGroup * w.blocks + block) * 2;
    return group[1] + kScaleValues.of[w.scales[row * w.blocks + block]] * group[0];
  } else {
    return reinterpret_cast<const float*>(w.scales)[row];
  }
}

template <bool kNf4>
VEC_INLINE const unsigned char* codes_of(const gemm::QuantizedMatrix& w, std::int64_t row) {
  return w.codes + row * w.blocks * (kNf4 ? kHalf : kQuantizedBlock);
}

/// Of W as columns of B (b_block.h): (p, j) is the element (row + j, step + p) of W, for j < kStrip; where j ≥ columns
/// it is 0. REQUIRES: `step` is a multiple of kQuantizedBlock; `out` has steps in whole vectors.
template <bool kNf4>
void decode_columns(const gemm::QuantizedMatrix& w, std::int64_t row, std::int64_t columns, std::int64_t step,
                    std::int64_t steps, const BBlock& out) {
  for (std::int64_t j = 0; j < gemm::kStrip; j += kLanes) {
    const std::int64_t across = gemm::most(0, gemm::least(kLanes, columns - j));
    for (std::int64_t begin = 0; begin < steps; begin += kQuantizedBlock) {
      const unsigned char* rows[kLanes];
      float scales[kLanes];
      for (std::int64_t i = 0; i < across; ++i) {
        rows[i] = codes_of<kNf4>(w, row + j + i);
        scales[i] = scale_of<kNf4>(w, row + j + i, (step + begin) / kQuantizedBlock);
      }
      for (std::int64_t p = begin; p < gemm::least(begin + kQuantizedBlock, steps); p += kLanes) {
        U32 square[kLanes];
        if (across == kLanes) {
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i) square[i] = (U32)(decoded<kNf4>(rows[i], step + p) * scales[i]);
        } else {
          for (int i = 0; i < kLanes; ++i)
            square[i] = i < across ? (U32)(decoded<kNf4>(rows[i], step + p) * scales[i]) : U32{};
        }
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(out.at(p + i, j), (F32)square[i]);
      }
    }
  }
}

/// Of W as rows of B: (p, j) is the element (step + p, column + j) of W. Behind its last column W holds 0.
/// REQUIRES: `column` is a multiple of kStrip.
template <bool kNf4>
void decode_rows(const gemm::QuantizedMatrix& w, std::int64_t step, std::int64_t steps, std::int64_t column,
                 const BBlock& out) {
  static_assert(gemm::kStrip == kHalf);
  for (std::int64_t p = 0; p < steps; ++p) {
    const unsigned char* row = codes_of<kNf4>(w, step + p);
    const float scale = scale_of<kNf4>(w, step + p, column / kQuantizedBlock);
#pragma GCC unroll 8
    for (int j = 0; j < gemm::kStrip; j += kLanes) store(out.at(p, j), decoded<kNf4>(row, column + j) * scale);
  }
}

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
