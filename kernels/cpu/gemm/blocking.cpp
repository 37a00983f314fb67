// How the sizes of blocks are worked out.
#include "kernels/cpu/gemm/blocking.h"

#include <algorithm>

namespace trainer::kernels::cpu::gemm {
namespace {

constexpr std::int64_t kABytes = 800 * 1024;  // of a 2 MiB L2, which what is read and written passes through, too

constexpr std::int64_t kStripsForA = 12;  // of a piece that is cut by strips: A is copied for each of them again

/// Rows or strips: the cut whose largest part is smaller. Several pieces for each thread where that costs nothing: of
/// rows those that are copied at a time anyway.
void cut(const Problem& problem, const Rules& rules, std::int64_t strips, int threads, Blocking& b) {
  const std::int64_t by_rows = divide_up(problem.m, threads) * strips,
                     by_strips = problem.m * divide_up(strips, threads);
  if (threads == 1) return;
  if (by_rows < by_strips || (by_rows == by_strips && problem.m >= problem.n)) {
    const std::int64_t each = divide_up(divide_up(problem.m, threads), rules.rows);
    b.row_parts = threads * static_cast<int>(each);
    b.row_grain = each > 1 ? rules.panel_rows : 1;
  } else {
    const std::int64_t each = std::clamp<std::int64_t>(strips / threads / kStripsForA, 1, 4);
    b.strip_parts = threads * static_cast<int>(each);
  }
}

}  // namespace

Blocking blocking_of(const Problem& problem, const Rules& rules, int threads) {
  Blocking b;
  const std::int64_t strips = divide_up(problem.n, kStrip);
  cut(problem, rules, strips, threads, b);
  b.strips = divide_up(strips, b.strip_parts);

  const std::int64_t least_blocks = std::max<std::int64_t>(1, divide_up(problem.k, kMaxDepth));
  b.depth = std::max(rules.step_grain, round_up(divide_up(problem.k, least_blocks), rules.step_grain));
  b.blocks = std::max<std::int64_t>(1, divide_up(problem.k, b.depth));

  // As many blocks of A as L2 takes: each trip of C through f32 costs.
  b.rows = round_up(std::min(divide_up(problem.m, b.row_parts) + b.row_grain - 1, rules.rows), rules.panel_rows);
  const std::int64_t block_bytes = b.rows / rules.panel_rows * rules.panel_bytes;
  b.blocks_at_once = std::clamp<std::int64_t>(kABytes / block_bytes, 1, b.blocks);
  b.blocks_at_once = divide_up(b.blocks, divide_up(b.blocks, b.blocks_at_once));
  b.a_bytes = b.blocks_at_once * block_bytes;
  b.b_bytes = rules.b_bytes;
  b.c_bytes = (b.sums_wait() ? b.strips : 1) * b.rows * kStrip * std::int64_t{sizeof(float)};
  return b;
}

std::int64_t most_thread_bytes(const Problem& problem, const Rules& rules) {
  const std::int64_t rows = round_up(std::min(std::max<std::int64_t>(1, problem.m), rules.rows), rules.panel_rows);
  const std::int64_t block_bytes = rows / rules.panel_rows * rules.panel_bytes;
  const std::int64_t blocks = divide_up(std::max<std::int64_t>(1, problem.k), kMaxDepth);
  const std::int64_t strips = blocks > 1 ? divide_up(problem.n, kStrip) : 1;
  return std::min(blocks * block_bytes, std::max(kABytes, block_bytes)) + rules.b_bytes +
         strips * rows * kStrip * std::int64_t{sizeof(float)};
}

}  // namespace trainer::kernels::cpu::gemm
