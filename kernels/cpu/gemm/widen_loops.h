// The product by f32 multiply-adds, for each instruction set (widen_loops.cpp).
#pragma once

#include "kernels/cpu/gemm/blocking.h"

namespace trainer::kernels::cpu {

#define DECLARE_WIDEN(isa)                                                                              \
  namespace isa {                                                                                       \
  /* Computes `part` of `problem`. REQUIRES: blocking.thread_bytes() of scratch, 64-byte aligned. */    \
  void widen_part(const gemm::Problem& problem, const gemm::Blocking& blocking, const gemm::Part& part, \
                  unsigned char* scratch);                                                              \
  /* Widens the strips [strip, strip_end) of B to their places in `to`, which widened_bytes holds. */   \
  void widen_strips(const gemm::Problem& problem, const gemm::Blocking& blocking, std::int64_t strip,   \
                    std::int64_t strip_end, float* to);                                                 \
  }
DECLARE_WIDEN(portable)
DECLARE_WIDEN(avx2)
DECLARE_WIDEN(avx512)
#undef DECLARE_WIDEN

namespace gemm {
inline constexpr int kWidenDepth = 256;
/// Floats from one row of a widened block of A to the next: the deepest block and a cache line, so that rows do not all
/// fall into the same sets of L1.
inline constexpr int kRowStride = kWidenDepth + 16;

/// 14 × 2 of 32 AVX-512 registers, or 6 × 2 of 16 smaller ones, hold C. A panel of A by columns fills whole vectors: 16
/// or 8; so does a block of B that is turned, in k.
constexpr Rules widen_rules(bool has_avx512) {
  return {.panel_rows = has_avx512 ? 14 : 6,
          .depth = kWidenDepth,
          .step_grain = 16,
          .rows = has_avx512 ? 280 : 282,
          .least_rows = has_avx512 ? 280 : 282,
          .strips_for_a = 12,
          .panel_bytes = (has_avx512 ? 16 : 8) * kRowStride * 4,
          .dense = false,
          .b_bytes = kWidenDepth * kStrip * 4};
}

/// Of `columns` columns of B in widened blocks: [strips][blocks][as b_block.h says].
constexpr std::int64_t widened_bytes(const Blocking& blocking, std::int64_t columns) {
  return divide_up(columns, kStrip) * blocking.blocks * blocking.depth * kStrip * 4;
}
}  // namespace gemm

}  // namespace trainer::kernels::cpu
