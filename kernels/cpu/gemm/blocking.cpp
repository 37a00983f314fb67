#include "kernels/cpu/gemm/blocking.h"

#include <algorithm>

namespace trainer::kernels::cpu::gemm {
namespace {

constexpr std::int64_t kRowsTarget = 280;      // 20 panels of 14 share one widened strip of B
constexpr std::int64_t kABytes = 1200 * 1024;  // some half of a 2 MiB L2

/// Rows or strips: the cut whose largest part is smaller.
void cut(const Problem& problem, std::int64_t strips, int threads, Blocking& b) {
  const std::int64_t by_rows = divide_up(problem.m, threads) * strips, by_strips = problem.m * divide_up(strips, threads);
  if (by_rows < by_strips || (by_rows == by_strips && problem.m >= problem.n))
    b.row_parts = threads;
  else
    b.strip_parts = threads;
}

}  // namespace

Blocking blocking_of(const Problem& problem, int panel_rows, int threads) {
  Blocking b;
  const std::int64_t strips = divide_up(problem.n, kStrip);
  cut(problem, strips, threads, b);
  const std::int64_t part_rows = divide_up(problem.m, b.row_parts);
  b.strips = divide_up(strips, b.strip_parts);
  b.blocks = std::max<std::int64_t>(1, divide_up(problem.k, kMaxDepth));
  b.depth = std::max<std::int64_t>(2, round_up(divide_up(problem.k, b.blocks), 2));
  b.blocks = std::max<std::int64_t>(1, divide_up(problem.k, b.depth));

  // Few rows allow a deep block of A, and the other way round; a deep one saves trips of C.
  const std::int64_t block_row_bytes = kRowStride * std::int64_t{sizeof(float)};
  b.rows = round_up(std::min(part_rows, kRowsTarget), panel_rows);
  b.blocks_at_once = std::clamp<std::int64_t>(kABytes / (b.rows * block_row_bytes), 1, b.blocks);
  b.blocks_at_once = divide_up(b.blocks, divide_up(b.blocks, b.blocks_at_once));
  b.a_bytes = round_up(b.blocks_at_once * b.rows * block_row_bytes, 64);
  b.b_bytes = kMaxDepth * kStrip * std::int64_t{sizeof(float)};
  b.c_bytes = (b.sums_wait() ? b.strips : 1) * b.rows * kStrip * std::int64_t{sizeof(float)};
  return b;
}

}  // namespace trainer::kernels::cpu::gemm
