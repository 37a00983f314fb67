// The matrix product by f32 multiply-adds: bf16 operands are widened, f32 ones copied, block by block into scratch that
// stays in cache. It serves every instruction set, and for bf16 on Intel's processors it is the fastest AVX-512 way too:
// vdpbf16ps issues there every second cycle, half the FLOPs of two f32 FMAs a cycle (Emerald Rapids, measured).
//
// A block of A is [rows][kRowStride] if A lies by rows, else panels [steps][kPanel]; a block of B is [steps][kStrip].
// Sums over the blocks of k stand in f32 strips of C, [rows][kStrip]: one, or one for each strip if k is so deep that
// A is widened piece by piece.
//
// Tried without gain: rows of A packed as panels (a transposition, and the rows are as fast); 12 rows in registers.
#include "kernels/cpu/gemm/finish.h"
#include "kernels/cpu/gemm/packed.h"
#include "kernels/cpu/gemm/transpose.h"
#include "kernels/cpu/gemm/widen_loops.h"
#include "kernels/cpu/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

using gemm::Blocking;
using gemm::divide_up;
using gemm::kRowStride;
using gemm::kStrip;
using gemm::least;
using gemm::Order;
using gemm::Part;
using gemm::Problem;

constexpr int kPanel = gemm::widen_rules(kLanes == 16).panel_rows;
constexpr int kVectors = 2;                     // of a row of C in registers
constexpr int kColumns = kVectors * kLanes;     // of C at a time

// ---- the innermost loop

/// c[kRows][kStrip] (+)= a · b over `steps`, for kColumns columns.
template <int kRows, int kRowStep, int kStep>
void multiply(const float* __restrict a, const float* __restrict b, std::int64_t steps, float* __restrict c, bool add) {
  F32 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = add ? load(c + r * kStrip + v * kLanes) : F32{};
#pragma GCC unroll 2
  for (std::int64_t p = 0; p < steps; ++p) {
    F32 row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row[v] = load(b + p * kStrip + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float x = a[r * kRowStep + p * kStep];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] += row[v] * x;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store(c + r * kStrip + v * kLanes, sum[r][v]);
}

using Multiply = void (*)(const float*, const float*, std::int64_t, float*, bool);

/// The loop for `rows` of 1 to kPanel.
template <int kRowStep, int kStep, int kRows = kPanel>
Multiply multiply_for(std::int64_t rows) {
  if constexpr (kRows == 1) {
    return multiply<1, kRowStep, kStep>;
  } else {
    return rows == kRows ? multiply<kRows, kRowStep, kStep> : multiply_for<kRowStep, kStep, kRows - 1>(rows);
  }
}

// ---- widening (of bf16; f32 is copied)

/// `rows` by `steps` of A that lies by rows.
template <typename T>
void widen_rows(const T* a, std::int64_t lda, std::int64_t rows, std::int64_t steps, float* out) {
  for (std::int64_t i = 0; i < rows; ++i)
    for_each_vector(0, steps, [&](std::int64_t p, auto get, auto) { store(out + i * kRowStride + p, get(a + i * lda + p)); });
}

/// Panels of `panel_rows` rows (the last may have fewer) of A that lies by columns.
template <typename T>
void widen_columns(const T* a, std::int64_t lda, std::int64_t rows, std::int64_t panel_rows, std::int64_t steps, float* out) {
  for (std::int64_t p = 0; p < steps; ++p)
    for (std::int64_t i = 0; i < rows; i += panel_rows) {
      const T* from = a + p * lda + i;
      float* to = out + (i / panel_rows) * kPanel * kRowStride + p * kPanel;
      for_each_vector(0, least(panel_rows, rows - i), [&](std::int64_t j, auto get, auto put) { put(to + j, get(from + j)); });
    }
}

/// `steps` of a packed strip: even steps in the lower halves of words, odd ones in the upper.
void widen_pairs(const std::uint32_t* strip, std::int64_t steps, float* out) {
  const U32 upper = splat_u32(0xFFFF0000u);
  for (std::int64_t p = 0; p < steps; p += 2)
    for (int j = 0; j < kStrip; j += kLanes) {
      U32 pairs;
      __builtin_memcpy(&pairs, strip + p / 2 * kStrip + j, sizeof pairs);
      store(out + p * kStrip + j, (F32)(pairs << 16));
      store(out + (p + 1) * kStrip + j, (F32)(pairs & upper));
    }
}

/// `steps` of `columns` ≤ kStrip columns of B that lies by rows; the other columns become 0.
template <typename T>
void widen_plain(const T* b, std::int64_t ldb, std::int64_t columns, std::int64_t steps, float* out) {
  if (columns == kStrip) {
    for (std::int64_t p = 0; p < steps; ++p)
#pragma GCC unroll 8
      for (int j = 0; j < kStrip; j += kLanes) store(out + p * kStrip + j, load(b + p * ldb + j));
    return;
  }
  for (std::int64_t p = 0; p < steps; ++p) {
    for (int j = 0; j < kStrip; j += kLanes) store(out + p * kStrip + j, F32{});
    for_each_vector(0, columns, [&](std::int64_t j, auto get, auto put) { put(out + p * kStrip + j, get(b + p * ldb + j)); });
  }
}

/// The same of B that lies by columns: squares of registers are transposed.
template <typename T>
void widen_turned(const T* b, std::int64_t ldb, std::int64_t columns, std::int64_t steps, float* out) {
  for (std::int64_t j = 0; j < kStrip; j += kLanes)
    for (std::int64_t p = 0; p < steps; p += kLanes) {
      const std::int64_t across = least(kLanes, columns - j), down = least(kLanes, steps - p);
      U32 square[kLanes];
      if (across == kLanes && down == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) square[i] = (U32)load(b + (j + i) * ldb + p);
      } else {
        for (int i = 0; i < kLanes; ++i) square[i] = i < across ? (U32)load_first(b + (j + i) * ldb + p, static_cast<int>(down)) : U32{};
      }
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(out + (p + i) * kStrip + j, (F32)square[i]);
    }
}

// ---- blocks

/// One part's work and where its scratch lies. T: what the operands hold.
template <typename T>
struct Worker {
  const Problem& problem;
  const Blocking& blocking;
  float *a, *b, *c;

  std::int64_t steps_of(std::int64_t block) const { return least(blocking.depth, problem.k - block * blocking.depth); }
  float* block_of_a(std::int64_t block) const { return a + block % blocking.blocks_at_once * blocking.rows * kRowStride; }

  void widen_a(std::int64_t row, std::int64_t rows, std::int64_t panel_rows, std::int64_t block) const {
    const T* from = static_cast<const T*>(problem.a);
    const std::int64_t step = block * blocking.depth;
    if (problem.a_order == Order::rows)
      widen_rows(from + row * problem.lda + step, problem.lda, rows, steps_of(block), block_of_a(block));
    else
      widen_columns(from + step * problem.lda + row, problem.lda, rows, panel_rows, steps_of(block), block_of_a(block));
  }

  void widen_b(std::int64_t strip, std::int64_t block) const {
    const std::int64_t step = block * blocking.depth, column = strip * kStrip, columns = least(kStrip, problem.n - column);
    const T* from = static_cast<const T*>(problem.b);
    if (problem.b_order == Order::strips)
      widen_pairs(static_cast<const std::uint32_t*>(problem.b) + strip * gemm::packed_strip_words(problem.k) + step / 2 * kStrip,
                  steps_of(block), b);
    else if (problem.b_order == Order::rows)
      widen_plain(from + step * problem.ldb + column, problem.ldb, columns, steps_of(block), b);
    else
      widen_turned(from + column * problem.ldb + step, problem.ldb, columns, steps_of(block), b);
  }

  /// sums (+)= block · strip, panel by panel.
  void multiply_block(std::int64_t rows, std::int64_t panel_rows, std::int64_t block, float* sums) const {
    const bool by_rows = problem.a_order == Order::rows;
    for (std::int64_t i = 0; i < rows; i += panel_rows) {
      const std::int64_t count = least(panel_rows, rows - i);
      const float* from = block_of_a(block) + (by_rows ? i : i / panel_rows * kPanel) * kRowStride;
      const Multiply run = by_rows ? multiply_for<kRowStride, 1>(count) : multiply_for<1, kPanel>(count);
      for (int j = 0; j < kStrip; j += kColumns) run(from, b + j, steps_of(block), sums + i * kStrip + j, block > 0);
    }
  }

  void rows_of_c(std::int64_t row, std::int64_t rows, const Part& part) const {
    const std::int64_t panel_rows = divide_up(rows, divide_up(rows, kPanel));  // panels of equal size
    for (std::int64_t first = 0; first < blocking.blocks; first += blocking.blocks_at_once) {
      const std::int64_t last = least(first + blocking.blocks_at_once, blocking.blocks);
      for (std::int64_t block = first; block < last; ++block) widen_a(row, rows, panel_rows, block);
      for (std::int64_t strip = part.strip; strip < part.strip_end; ++strip) {
        float* sums = c + (blocking.sums_wait() ? (strip - part.strip) * blocking.rows * kStrip : 0);
        for (std::int64_t block = first; block < last; ++block) {
          widen_b(strip, block);
          multiply_block(rows, panel_rows, block, sums);
        }
        if (last < blocking.blocks) continue;
        finish_rows<T>(problem, sums, row, rows, strip);
      }
    }
  }
};

template <typename T>
void run_part(const Problem& problem, const Blocking& blocking, const Part& part, unsigned char* scratch) {
  const Worker<T> worker{problem, blocking, reinterpret_cast<float*>(scratch), reinterpret_cast<float*>(scratch + blocking.a_bytes),
                         reinterpret_cast<float*>(scratch + blocking.a_bytes + blocking.b_bytes)};
  const std::int64_t count = part.row_end - part.row, chunks = divide_up(count, blocking.rows);
  const std::int64_t chunk = chunks ? divide_up(count, chunks) : 0;
  for (std::int64_t row = part.row; row < part.row_end; row += chunk) worker.rows_of_c(row, least(chunk, part.row_end - row), part);
  fence();
}

}  // namespace

void widen_part(const Problem& problem, const Blocking& blocking, const Part& part, unsigned char* scratch) {
  problem.inputs_are_f32 ? run_part<float>(problem, blocking, part, scratch) : run_part<Bf16>(problem, blocking, part, scratch);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
