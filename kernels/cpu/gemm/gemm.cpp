// Chooses the implementation, packs B where it does not lie as that wants it, and cuts the work over the team.
#include "kernels/cpu/gemm/gemm.h"

#include <algorithm>

#include "kernels/cpu/gemm/blocking.h"
#include "kernels/cpu/gemm/column_sums.h"
#include "kernels/cpu/gemm/packed.h"
#include "kernels/cpu/gemm/widen_loops.h"
#include "kernels/cpu/make_kernel.h"
#include "kernels/cpu/parallel.h"

namespace trainer::kernels::cpu::gemm {
namespace {

Blocking blocking_for(const Problem& problem, Isa isa, int threads) {
  return blocking_of(problem, widen_panel_rows(isa >= Isa::avx512), threads);
}

/// Whether C is so large that it would only push other things out of the caches, and lies so that it can be streamed.
bool leaves_caches(const Problem& p) {
  constexpr std::int64_t kLarge = 8 << 20;
  const std::int64_t row_bytes = p.ldc * (p.c_is_f32 ? 4 : 2);
  return p.m * row_bytes >= kLarge && row_bytes % 64 == 0 && reinterpret_cast<std::uintptr_t>(p.c) % 64 == 0 && !p.accumulate;
}

Part part_of(const Problem& problem, const Blocking& blocking, int part) {
  const Range rows = partition(problem.m, part / blocking.strip_parts, blocking.row_parts);
  const Range strips = partition(packed_strips(problem.n), part % blocking.strip_parts, blocking.strip_parts);
  return {rows.begin, rows.end, strips.begin, strips.end};
}

}  // namespace

void pack(const Packing& packing, Isa isa, int threads) {
  const auto loop = CHOOSE_BY_ISA(isa, pack_strips);
  parallel_ranges(packed_strips(packing.n), 1, threads_for(packed_bytes(packing.k, packing.n), threads),
                  [&](std::int64_t begin, std::int64_t end) { loop(packing, begin, end); });
}

std::int64_t workspace_bytes(const Problem& problem, Isa isa, int threads) {
  return threads * blocking_for(problem, isa, threads).part_bytes();
}

void run(const Problem& given, Isa isa, int threads, void* workspace) {
  Problem problem = given;
  problem.stream = leaves_caches(given);
  const Blocking blocking = blocking_for(problem, isa, threads);
  const auto loop = CHOOSE_BY_ISA(isa, widen_part);
  parallel(threads, [&](int part, int) {
    loop(problem, blocking, part_of(problem, blocking, part), static_cast<unsigned char*>(workspace) + part * blocking.part_bytes());
  });
}

void sum_columns(const ColumnSums& sums, Isa isa, int threads) {
  const auto loop = CHOOSE_BY_ISA(isa, sum_columns_of);
  parallel_ranges(sums.columns, 64, threads_for(sums.rows * sums.columns * (sums.from_is_f32 ? 4 : 2), threads),
                  [&](std::int64_t begin, std::int64_t end) { loop(sums, begin, end); });
}

}  // namespace trainer::kernels::cpu::gemm
