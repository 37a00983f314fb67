// Column sums of a matrix: the gradient of a bias. f32 sums over 64 rows each, added up in order: the error grows with
// rows / 64 and the result does not depend on the number of threads.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/isa.h"

namespace trainer::kernels::cpu::gemm {

struct ColumnSums {
  std::int64_t rows = 0, columns = 0;
  const void* from = nullptr;  ///< [rows, columns], f32 or bf16
  bool from_is_f32 = false;
  void* to = nullptr;  ///< [columns], f32 or bf16
  bool to_is_f32 = false;
  bool accumulate = false;
};

void sum_columns(const ColumnSums& sums, Isa isa, int threads);

}  // namespace trainer::kernels::cpu::gemm

namespace trainer::kernels::cpu {
// column_sums_loops.cpp, for each instruction set: the columns [begin, end).
namespace portable {
void sum_columns_of(const gemm::ColumnSums& sums, std::int64_t begin, std::int64_t end);
}
namespace avx2 {
void sum_columns_of(const gemm::ColumnSums& sums, std::int64_t begin, std::int64_t end);
}
namespace avx512 {
void sum_columns_of(const gemm::ColumnSums& sums, std::int64_t begin, std::int64_t end);
}
}  // namespace trainer::kernels::cpu
