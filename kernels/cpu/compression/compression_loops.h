// Loops of kernels/compression.h but for the choice of the top k (top_k_loops.h).
#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

/// Chunks of int8 codes and scales (engine/core/compression.h), `slices` of them.
struct Int8Chunks {
  unsigned char* bytes = nullptr;
  std::int64_t elements = 0;  ///< of a chunk
  std::int64_t chunk_bytes = 0;
  std::int64_t scales_offset = 0;
  std::int64_t slices = 1;
};

DECLARE_BY_ISA(void compress_bf16(bool bf16, const void* gradient, float* residual, Bf16* packed, std::int64_t begin,
                                  std::int64_t end);
               /// Fills block `block` of chunk `chunk`, and after the last block of a chunk its padding. residual: null
               /// without feedback.
               void quantize_int8(bool bf16, const void* gradient, float* residual, const Int8Chunks& to,
                                  std::int64_t chunk, std::int64_t block);
               /// Block `block` of chunk `chunk`, to the place chunk · elements + block · 256 of y.
               void dequantize_int8(const Int8Chunks& from, bool bf16, void* y, std::int64_t chunk, std::int64_t block);
               /// Block `block` of all chunks summed, to the place block · 256 of y.
               void dequantize_sum_int8(const Int8Chunks& from, bool bf16, void* y, std::int64_t block);
               /// y = x rounded to bf16.
               void round_to_bf16(const float* x, Bf16* y, std::int64_t count);)

}  // namespace trainer::kernels::cpu
