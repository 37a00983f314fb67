// The product of a single row, which reads every element of B once and is bound by that (row_loops.cpp).
#pragma once

#include "kernels/cpu/gemm/problem.h"

namespace trainer::kernels::cpu {

/// Bytes of scratch of a part: a row of bf16 as f32.
constexpr std::int64_t row_scratch_bytes(const gemm::Problem& problem) {
  return problem.inputs_are_f32 ? 0 : gemm::round_up(problem.k * 4, 64);
}

#define DECLARE_ROW(isa)                                                                                           \
  namespace isa {                                                                                                  \
  /* Strips [strip, strip_end) of C. REQUIRES: row_scratch_bytes of scratch, 64-byte aligned. */                   \
  void row_part(const gemm::Problem& problem, std::int64_t strip, std::int64_t strip_end, unsigned char* scratch); \
  }
DECLARE_ROW(portable)
DECLARE_ROW(avx2)
DECLARE_ROW(avx512)
#undef DECLARE_ROW

}  // namespace trainer::kernels::cpu
