// Blocking: how a product is cut over threads and caches. Worked out by shape, method and number of threads alone.
//
// Blocks are placed as Goto and van de Geijn do ("Anatomy of High-Performance Matrix Multiplication", TOMS 2008), with
// A and B exchanged: `depth` steps of a strip of B lie in L1 while the rows of A, copied into L2, pass by.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/problem.h"

namespace trainer::kernels::cpu::gemm {

/// What a method asks of its blocks.
struct Rules {
  std::int64_t panel_rows;    ///< rows of C that the innermost loop keeps in registers
  std::int64_t depth;         ///< the deepest block in k: deeper ones leave L1 no room for the rows that pass
  std::int64_t step_grain;    ///< depths are multiples of it
  std::int64_t rows;          ///< rows of A that share a block of B, at most; a multiple of panel_rows
  std::int64_t least_rows;    ///< fewer of them are not worth keeping all of their steps in L2
  std::int64_t strips_for_a;  ///< strips of a piece that is cut by strips: A is copied for each piece again
  std::int64_t panel_bytes;   ///< of panel_rows copied rows of A, `depth` deep
  bool dense;                 ///< whether shallower blocks take less
  std::int64_t b_bytes;       ///< scratch for a block of B
};

struct Blocking {
  int row_parts = 1, strip_parts = 1;  ///< pieces of C, cut by rows or by strips, never k; threads claim them
  std::int64_t row_grain = 1;          ///< rows of a piece are a multiple of it
  std::int64_t rows = 0;               ///< rows of A that are copied at a time
  std::int64_t depth = 0;              ///< steps of k in a block
  std::int64_t blocks = 0;             ///< blocks in k
  std::int64_t blocks_at_once = 0;     ///< blocks of k whose A is copied at a time; C waits in f32 between them
  std::int64_t strips = 0;             ///< strips of C of a piece, at most
  std::int64_t a_bytes = 0, b_bytes = 0, c_bytes = 0;  ///< scratch of a thread, each a multiple of 64

  int pieces() const { return row_parts * strip_parts; }
  std::int64_t thread_bytes() const { return a_bytes + b_bytes + c_bytes; }
  bool sums_wait() const { return blocks_at_once < blocks; }
};

Blocking blocking_of(const Problem& problem, const Rules& rules, int threads);

/// At least thread_bytes() of every problem with at most as many rows of A and steps of k.
std::int64_t most_thread_bytes(const Problem& problem, const Rules& rules);

}  // namespace trainer::kernels::cpu::gemm
