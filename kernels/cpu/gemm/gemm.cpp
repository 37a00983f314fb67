// Chooses the method, prepares B once where several chunks of rows need it, and cuts the work over the team.
#include "kernels/cpu/gemm/gemm.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "engine/core/quantized.h"
#include "kernels/cpu/gemm/blocking.h"
#include "kernels/cpu/gemm/column_sums.h"
#include "kernels/cpu/gemm/direct_loops.h"
#include "kernels/cpu/gemm/packed.h"
#include "kernels/cpu/gemm/pairs_loops.h"
#include "kernels/cpu/gemm/row_loops.h"
#include "kernels/cpu/gemm/tiles_loops.h"
#include "kernels/cpu/gemm/widen_loops.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu::gemm {
namespace {

using Loop = void (*)(const Problem&, const Blocking&, const Part&, unsigned char*);

Loop loop_of(Method method, Isa isa) {
  switch (method) {
    case Method::widen:
      return CHOOSE_BY_ISA(isa, widen_part);
    case Method::pairs:
      return avx512_bf16::pairs_part;
    case Method::emulated_pairs:
      return emulated_amx::pairs_part;
    case Method::tiles:
      return amx::tiles_part;
    case Method::emulated_tiles:
      return emulated_amx::tiles_part;
    case Method::direct:
    case Method::row:
      break;  // run_direct, run_row
  }
  UNREACHABLE("a method outside the enum");
}

Rules rules_of(Method method, Isa isa) {
  const bool pairs = method == Method::pairs || method == Method::emulated_pairs;
  return method == Method::widen ? widen_rules(isa >= Isa::avx512) : pairs ? pairs_rules() : tiles_rules();
}

Blocking blocking_for(const Problem& problem, Method method, Isa isa, int threads) {
  Rules rules = rules_of(method, isa);
  if (problem.quantized.blocks > 0) rules.step_grain = kQuantizedBlock;  // a block of B begins with one of W
  return blocking_of(problem, rules, threads);
}

/// AMD's processors issue vdpbf16ps as often as f32 multiply-adds, and their L3 is near; Intel's every second cycle,
/// and theirs is hardly faster than memory.
bool is_amd() {
#if defined(__x86_64__)
  static const bool amd = [] {
    unsigned highest = 0, name[3]{};
    __cpuid(0, highest, name[0], name[2], name[1]);
    return std::memcmp(name, "AuthenticAMD", sizeof name) == 0;
  }();
  return amd;
#else
  return false;
#endif
}

/// Whether C is so large that it would only push other things out of the caches, and lies so that it can be streamed.
/// Measured in whole steps.
bool leaves_caches(const Problem& p) {
  const std::int64_t large = is_amd() ? 8 << 20 : 1 << 20, row_bytes = p.ldc * (p.c_is_f32 ? 4 : 2);
  return p.m * row_bytes >= large && row_bytes % 64 == 0 && reinterpret_cast<std::uintptr_t>(p.c) % 64 == 0 &&
         p.addend != p.c;
}

Part part_of(const Problem& problem, const Blocking& blocking, int piece) {
  const Range rows = partition(problem.m, piece / blocking.strip_parts, blocking.row_parts, blocking.row_grain);
  const Range strips = partition(packed_strips(problem.n), piece % blocking.strip_parts, blocking.strip_parts);
  return {rows.begin, rows.end, strips.begin, strips.end};
}

// ---- one small operand

// Limits by gemm_bench on a Zen 3 (AVX2; 512 KiB of L2): larger B gain nothing over blocks that are copied.

constexpr std::int64_t kSmallB = 4 << 20;  // bytes of B that is packed once and read again for each 96 rows
constexpr std::int64_t kTinyB = 256 << 10;
constexpr std::int64_t kRowsForB = 384;    // of A, for a B that is not tiny
constexpr std::int64_t kSmallC = 1 << 20;  // bytes of the sums of C
constexpr std::int64_t kThin = 64;         // rows or columns of a C whose operands are not worth copying

/// The scratch: B where A lies by rows, else the sums of C.
std::int64_t direct_bytes(const Problem& p) {
  return (p.a_order == Order::rows ? p.k : p.m) * round_up(p.n, kStrip) * std::int64_t{sizeof(float)};
}

bool is_direct(const Problem& p, Isa isa) {
  if (!p.inputs_are_f32 || !p.c_is_f32 || p.quantized.blocks > 0 || p.k == 0) return false;
  if (p.a_order == Order::columns)
    return p.b_order == Order::rows && std::min(p.m, p.n) <= kThin && direct_bytes(p) <= kSmallC;
  constexpr std::int64_t kSets = 4096 / sizeof(float);  // rows so far apart share one set of L1: six may, fourteen not
  if (isa >= Isa::avx512 && p.lda % kSets == 0) return false;
  return direct_bytes(p) <= (p.m < kRowsForB ? kTinyB : kSmallB);
}

void run_direct(const Problem& p, Isa isa, int threads, unsigned char* scratch) {
  constexpr std::int64_t kLine = 16;  // floats
  const int team = threads_for((p.m * p.k + p.k * p.n + p.m * p.n) * 4, threads);
  auto* const floats = reinterpret_cast<float*>(scratch);
  if (p.a_order == Order::rows) {
    const auto pack = CHOOSE_BY_ISA(isa, direct_pack);
    const auto loop = CHOOSE_BY_ISA(isa, direct_rows);
    parallel_ranges(packed_strips(p.n), 1, threads_for(direct_bytes(p), threads),
                    [&](std::int64_t begin, std::int64_t end) { pack(p, begin, end, floats); });
    constexpr std::int64_t kRows = 96;  // of a piece, if there are so many
    const int pieces = team == 1 ? 1 : team * static_cast<int>(std::clamp<std::int64_t>(p.m / kRows / team, 1, 4));
    const std::int64_t grain = widen_rules(isa >= Isa::avx512).panel_rows;
    return parallel_claims(pieces, team, [&](int piece, int) {
      const Range rows = partition(p.m, piece, pieces, grain);
      if (rows.size() > 0) loop(p, floats, rows.begin, rows.end);
    });
  }
  const auto loop = CHOOSE_BY_ISA(isa, direct_sums);
  parallel(team, [&](int part, int parts) {
    const std::int64_t strips = packed_strips(p.n);
    const Range of_rows = p.m > p.n ? partition(p.m, part, parts, kLine) : Range{0, p.m},
                of_strips = p.m > p.n ? Range{0, strips} : partition(strips, part, parts);
    if (of_rows.size() > 0 && of_strips.size() > 0)
      loop(p, {of_rows.begin, of_rows.end, of_strips.begin, of_strips.end}, floats);
  });
}

// ---- B prepared once

// Each chunk of rows of C needs the blocks of B widened (widen_loops.cpp) or packed (packed_blocks.h). Where there are
// several chunks B is prepared once, before the product, for as many columns at a time as `kPreparedBytes` holds.

constexpr std::int64_t kPreparedBytes = 16 << 20;
constexpr std::int64_t kLeastColumns = 512;  // A is copied again for every group of columns

/// Of `columns` columns of B, prepared.
std::int64_t prepared_bytes(const Problem& problem, Method method, const Blocking& blocking, std::int64_t columns) {
  return method == Method::widen ? widened_bytes(blocking, columns) : packed_bytes(problem.k, columns);
}

/// Columns of B that are prepared at a time before they are multiplied; 0: B is prepared block by block.
std::int64_t prepared_columns(const Problem& problem, Method method, const Blocking& blocking) {
  const std::int64_t rows = divide_up(problem.m, blocking.row_parts),
                     chunks = blocking.row_parts * divide_up(rows, blocking.rows);
  if (problem.quantized.blocks > 0 || chunks < 2) return 0;
  const std::int64_t most = kPreparedBytes / prepared_bytes(problem, method, blocking, kStrip) * kStrip;
  if (most < std::min(problem.n, kLeastColumns)) return 0;
  return std::min(problem.n, round_up(divide_up(problem.n, divide_up(problem.n, most)), kStrip));
}

/// The product for the columns [column, column + columns).
Problem columns_of(const Problem& problem, std::int64_t column, std::int64_t columns) {
  const std::int64_t in = problem.inputs_are_f32 ? 4 : 2, out = problem.c_is_f32 ? 4 : 2;
  const auto from = [](const void* p, std::int64_t bytes) {
    return p ? static_cast<const unsigned char*>(p) + bytes : nullptr;
  };
  Problem part = problem;
  part.n = columns;
  part.b = from(problem.b, column * (problem.b_order == Order::rows ? 1 : problem.ldb) * in);
  part.bias = from(problem.bias, column * in);
  part.addend = from(problem.addend, column * out);
  part.c = static_cast<unsigned char*>(problem.c) + column * out;
  return part;
}

void run_blocked(const Problem& problem, Method method, Isa isa, int threads, unsigned char* scratch) {
  const Blocking blocking = blocking_for(problem, method, isa, threads);
  const Loop loop = loop_of(method, isa);
  parallel_claims(blocking.pieces(), threads, [&](int piece, int thread) {
    loop(problem, blocking, part_of(problem, blocking, piece), scratch + thread * blocking.thread_bytes());
  });
}

void run_prepared(const Problem& given, std::int64_t columns, Method method, Isa isa, int threads,
                  unsigned char* scratch) {
  for (std::int64_t column = 0; column < given.n; column += columns) {
    Problem problem = columns_of(given, column, std::min(columns, given.n - column));
    const Blocking blocking = blocking_for(problem, method, isa, threads);
    if (method == Method::widen) {
      const auto widen = CHOOSE_BY_ISA(isa, widen_strips);
      auto* const widened = reinterpret_cast<float*>(scratch);
      parallel_ranges(packed_strips(problem.n), 1, threads,
                      [&](std::int64_t begin, std::int64_t end) { widen(problem, blocking, begin, end, widened); });
      problem.b_order = Order::blocks;
    } else {
      const auto pack = CHOOSE_BY_ISA(isa, pack_strips);
      const Packing packing{problem.k, problem.n, problem.b, problem.ldb, problem.b_order, scratch};
      parallel_ranges(packed_strips(problem.n), 1, threads,
                      [&](std::int64_t begin, std::int64_t end) { pack(packing, begin, end); });
      problem.b_order = Order::strips;
    }
    problem.b = scratch;
    run_blocked(problem, method, isa, threads, scratch + prepared_bytes(problem, method, blocking, columns));
  }
}

void run_row(const Problem& problem, Isa isa, int threads, unsigned char* scratch) {
  const auto loop = CHOOSE_BY_ISA(isa, row_part);
  const std::int64_t bytes = problem.n * problem.k * (problem.inputs_are_f32 ? 4 : 2);
  parallel(threads_for(bytes, threads), [&](int part, int of) {
    const Range strips = partition(packed_strips(problem.n), part, of);
    loop(problem, strips.begin, strips.end, scratch + part * row_scratch_bytes(problem));
  });
}

}  // namespace

Method method_for(const Problem& problem, Isa isa) {
  if (problem.quantized.blocks > 0) return Method::widen;
  if (problem.m == 1 && problem.a_order == Order::rows && problem.b_order == Order::columns) return Method::row;
  if (is_direct(problem, isa)) return Method::direct;
  if (problem.inputs_are_f32 || isa < Isa::avx512_bf16) return Method::widen;
  return isa >= Isa::amx ? Method::tiles : is_amd() ? Method::pairs : Method::widen;
}

std::int64_t workspace_bytes(const Problem& problem, Method method, Isa isa, int threads) {
  if (method == Method::row) return threads * row_scratch_bytes(problem);
  if (method == Method::direct) return direct_bytes(problem);
  const Blocking blocking = blocking_for(problem, method, isa, threads);
  const std::int64_t columns = prepared_columns(problem, method, blocking);
  if (columns == 0) return threads * blocking.thread_bytes();
  std::int64_t bytes = 0;  // of a team, for any of the groups
  for (const std::int64_t n : {columns, problem.n % columns}) {
    Problem group = problem;
    group.n = n;
    if (n > 0) bytes = std::max(bytes, threads * blocking_for(group, method, isa, threads).thread_bytes());
  }
  return prepared_bytes(problem, method, blocking, columns) + bytes;
}

std::int64_t most_workspace_bytes(const Problem& problem, Isa isa, int threads) {
  Problem several = problem;
  several.m = std::max<std::int64_t>(2, problem.m);
  const Method of_all = method_for(several, isa), method = of_all == Method::direct ? Method::widen : of_all;
  const std::int64_t prepared = prepared_bytes(problem, method, blocking_for(several, method, isa, threads), problem.n);
  const std::int64_t blocked =
      std::min(kPreparedBytes, prepared) + threads * most_thread_bytes(problem, rules_of(method, isa));
  const std::int64_t direct = std::min(direct_bytes(several), problem.a_order == Order::rows ? kSmallB : kSmallC);
  return std::max({blocked, direct, threads * row_scratch_bytes(problem)});
}

void run(const Problem& given, Method method, Isa isa, int threads, void* workspace) {
  Problem problem = given;
  problem.stream = leaves_caches(given);
  auto* scratch = static_cast<unsigned char*>(workspace);
  if (method == Method::row) return run_row(problem, isa, threads, scratch);
  if (method == Method::direct) return run_direct(problem, isa, threads, scratch);
  const std::int64_t columns = prepared_columns(problem, method, blocking_for(problem, method, isa, threads));
  if (columns > 0) return run_prepared(problem, columns, method, isa, threads, scratch);
  run_blocked(problem, method, isa, threads, scratch);
}

void sum_columns(const ColumnSums& sums, Isa isa, int threads) {
  const auto loop = CHOOSE_BY_ISA(isa, sum_columns_of);
  parallel_ranges(sums.columns, 64, threads_for(sums.rows * sums.columns * (sums.from_is_f32 ? 4 : 2), threads),
                  [&](std::int64_t begin, std::int64_t end) { loop(sums, begin, end); });
}

}  // namespace trainer::kernels::cpu::gemm
