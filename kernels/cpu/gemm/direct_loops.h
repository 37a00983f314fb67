// Products of f32 operands of which one is small, for each instruction set (direct_loops.cpp).
#pragma once

#include "kernels/cpu/gemm/problem.h"

namespace trainer::kernels::cpu {

#define DECLARE_DIRECT(isa)                                                                                      \
  namespace isa {                                                                                                \
  /* Copies strips of B to their places in `to`: [columns / kColumns][k][kColumns], 0 behind the last column. */ \
  void direct_pack(const gemm::Problem& problem, std::int64_t strip, std::int64_t strip_end, float* to);         \
  /* The rows [row, row_end) of C. REQUIRES: A lies by rows; B has been packed. */                               \
  void direct_rows(const gemm::Problem& problem, const float* packed, std::int64_t row, std::int64_t row_end);   \
  /* A piece of C. REQUIRES: A lies by columns, B by rows; a place for each element of C in whole strips. */     \
  void direct_sums(const gemm::Problem& problem, const gemm::Part& part, float* sums);                           \
  }
DECLARE_DIRECT(portable)
DECLARE_DIRECT(avx2)
DECLARE_DIRECT(avx512)
#undef DECLARE_DIRECT

}  // namespace trainer::kernels::cpu
