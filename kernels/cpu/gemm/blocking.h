// Blocking: how a product is cut over threads and caches by the implementation that widens to f32. Worked out once,
// by shape, instruction set and number of threads alone.
//
// Blocks are placed as Goto and van de Geijn do ("Anatomy of High-Performance Matrix Multiplication", TOMS 2008), with
// A and B exchanged: `depth` steps of a strip of B lie in L1 in f32 while the rows of A, in f32 in L2, pass by.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/problem.h"

namespace trainer::kernels::cpu::gemm {

/// Floats from one row of a widened block of A to the next: the deepest block and a cache line, so that rows do not
/// all fall into the same sets of L1.
inline constexpr int kMaxDepth = 256;
inline constexpr int kRowStride = kMaxDepth + 16;

struct Blocking {
  int row_parts = 1, strip_parts = 1;  ///< the parts of a team cut C by rows or by strips, never k
  std::int64_t rows = 0;               ///< rows of A that are widened at a time
  std::int64_t depth = 0;              ///< steps of k in a block; even
  std::int64_t blocks = 0;             ///< blocks in k
  std::int64_t blocks_at_once = 0;     ///< blocks of k whose A is widened at a time; C waits in f32 between them
  std::int64_t strips = 0;             ///< strips of C of a part, at most
  std::int64_t a_bytes = 0, b_bytes = 0, c_bytes = 0;  ///< scratch of a part, each a multiple of 64

  std::int64_t part_bytes() const { return a_bytes + b_bytes + c_bytes; }
  bool sums_wait() const { return blocks_at_once < blocks; }
};

/// `panel_rows`: rows that the innermost loop keeps in registers.
Blocking blocking_of(const Problem& problem, int panel_rows, int threads);

}  // namespace trainer::kernels::cpu::gemm
