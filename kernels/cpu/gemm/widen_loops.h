// The bf16 product by f32 multiply-adds, for each instruction set (widen_loops.cpp).
#pragma once

#include "kernels/cpu/gemm/blocking.h"

namespace trainer::kernels::cpu {

#define DECLARE_WIDEN(isa)                                                                              \
  namespace isa {                                                                                       \
  /* Computes `part` of `problem`. REQUIRES: blocking.part_bytes() of scratch, 64-byte aligned. */      \
  void widen_part(const gemm::Problem& problem, const gemm::Blocking& blocking, const gemm::Part& part, \
                  unsigned char* scratch);                                                              \
  }
DECLARE_WIDEN(portable)
DECLARE_WIDEN(avx2)
DECLARE_WIDEN(avx512)
#undef DECLARE_WIDEN

namespace gemm {
/// Rows of C that the innermost loop keeps in registers: 14 × 2 of 32 AVX-512 registers, 6 × 2 of 16 others.
constexpr int widen_panel_rows(bool has_avx512) { return has_avx512 ? 14 : 6; }
}  // namespace gemm

}  // namespace trainer::kernels::cpu
