// How the sizes of blocks are worked out.
#include "kernels/cpu/gemm/blocking.h"

#include <algorithm>

namespace trainer::kernels::cpu::gemm {
namespace {

// Of a 2 MiB L2, which what is read and written passes through, too.
constexpr std::int64_t kABytes = 800 * 1024;          // blocks of A
constexpr std::int64_t kAAndSumsBytes = 1536 * 1024;  // one block of A, and the sums of C that wait for the next

/// Whether C is cut by rows, or by strips: the cut whose largest part is smaller.
bool cuts_rows(const Problem& problem, std::int64_t strips, int threads) {
  const std::int64_t by_rows = divide_up(problem.m, threads) * strips,
                     by_strips = problem.m * divide_up(strips, threads);
  return by_rows < by_strips || (by_rows == by_strips && problem.m >= problem.n);
}

/// Rows of A that share a block of B: so many that all of their steps fit into L2, if that is enough of them.
std::int64_t rows_of(const Blocking& b, std::int64_t panel_bytes, std::int64_t strips, const Rules& rules) {
  const std::int64_t whole = kABytes / (b.blocks * panel_bytes) * rules.panel_rows;
  if (whole >= rules.least_rows) return std::min(whole, rules.rows);
  if (!rules.dense) return rules.rows;
  const std::int64_t panel_sums = strips * rules.panel_rows * kStrip * std::int64_t{sizeof(float)};
  return std::clamp(kAAndSumsBytes / (panel_bytes + panel_sums) * rules.panel_rows, rules.least_rows / 2, rules.rows);
}

}  // namespace

Blocking blocking_of(const Problem& problem, const Rules& rules, int threads) {
  Blocking b;
  const std::int64_t strips = divide_up(problem.n, kStrip);
  const std::int64_t least_blocks = std::max<std::int64_t>(1, divide_up(problem.k, rules.depth));
  b.depth = std::max(rules.step_grain, round_up(divide_up(problem.k, least_blocks), rules.step_grain));
  b.blocks = std::max<std::int64_t>(1, divide_up(problem.k, b.depth));
  const std::int64_t panel_bytes = rules.dense ? rules.panel_bytes / rules.depth * b.depth : rules.panel_bytes;

  // Several pieces for each thread where that costs nothing: of rows those that are copied at a time anyway.
  const bool by_rows = threads == 1 || cuts_rows(problem, strips, threads);
  if (!by_rows)
    b.strip_parts = threads * static_cast<int>(std::clamp<std::int64_t>(strips / threads / rules.strips_for_a, 1, 4));
  b.strips = divide_up(strips, b.strip_parts);
  const std::int64_t rows = rows_of(b, panel_bytes, b.strips, rules);
  if (by_rows && threads > 1) {
    const std::int64_t each = divide_up(divide_up(problem.m, threads), rows);
    b.row_parts = threads * static_cast<int>(each);
    b.row_grain = each > 1 ? rules.panel_rows : 1;
  }

  // As many blocks of A as L2 takes: each trip of C through f32 costs.
  b.rows = round_up(std::min(divide_up(problem.m, b.row_parts) + b.row_grain - 1, rows), rules.panel_rows);
  const std::int64_t block_bytes = b.rows / rules.panel_rows * panel_bytes;
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
  const std::int64_t blocks = divide_up(std::max<std::int64_t>(1, problem.k), rules.depth);
  const std::int64_t row_sums = kStrip * std::int64_t{sizeof(float)},
                     strip_sums = blocks == 1 ? 0 : divide_up(problem.n, kStrip) * row_sums;
  const std::int64_t waiting =
      rules.dense ? std::min(rows * strip_sums, std::max(kAAndSumsBytes, rules.least_rows / 2 * strip_sums))
                  : rows * strip_sums;
  return std::min(blocks * block_bytes, std::max(kABytes, block_bytes)) + rules.b_bytes +
         std::max(rows * row_sums, waiting);
}

}  // namespace trainer::kernels::cpu::gemm
