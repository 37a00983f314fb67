// The bf16 product by vdpbf16ps (pairs_loops.cpp): by the processor's, and by multiply-adds for tests.
#pragma once

#include "kernels/cpu/gemm/blocking.h"

namespace trainer::kernels::cpu {
namespace gemm {
inline constexpr int kPairsDepth = 256;
/// Words (pairs of bf16) from one copied row of A to the next: the deepest block and a cache line, so that rows do not
/// all fall into the same sets of L1.
inline constexpr int kPairStride = kPairsDepth / 2 + 16;

/// 14 × 2 of 32 registers hold C.
constexpr Rules pairs_rules() {
  return {.panel_rows = 14,
          .depth = kPairsDepth,
          .step_grain = 32,
          .rows = 280,
          .least_rows = 280,
          .strips_for_a = 12,
          .panel_bytes = 14 * kPairStride * 4,
          .dense = false,
          .b_bytes = kPairsDepth / 2 * kStrip * 4};
}
}  // namespace gemm

// Computes `part` of `problem`, whose inputs are bf16. REQUIRES: blocking.thread_bytes() of
// scratch, 64-byte aligned.
namespace avx512_bf16 {
void pairs_part(const gemm::Problem& problem, const gemm::Blocking& blocking, const gemm::Part& part,
                unsigned char* scratch);
}
namespace emulated_amx {
void pairs_part(const gemm::Problem& problem, const gemm::Blocking& blocking, const gemm::Part& part,
                unsigned char* scratch);
}

}  // namespace trainer::kernels::cpu
