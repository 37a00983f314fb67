// The bf16 product by vdpbf16ps, which adds the products of a pair of steps to each of 16 sums: on AMD's processors at
// the rate of f32 multiply-adds, so twice the FLOPs of widen_loops.cpp, and without its widening. The order of blocks
// is the same (blocking.h): a block of a strip of B lies in L1 in its packed form, the rows of A, copied, in L2.
//
//   block of A   [rows][kPairStride] words, each a pair of steps of a row; behind the last step 0
//   block of B   [pairs][kStrip] words (packed_blocks.h)
//
// Two products are added one after the other, each rounded to nearest; denormals count as 0 (Intel SDM volume 2,
// VDPBF16PS). A source compiled without the instruction does the same by multiply-adds: so the algorithm is tested on
// machines without it too.
#include "kernels/cpu/gemm/pairs_loops.h"

#include "kernels/cpu/gemm/finish.h"
#include "kernels/cpu/gemm/packed_blocks.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {

namespace {

using gemm::Blocking;
using gemm::divide_up;
using gemm::kPairStride;
using gemm::kStrip;
using gemm::least;
using gemm::Order;
using gemm::Part;
using gemm::Problem;

constexpr int kPanel = static_cast<int>(gemm::pairs_rules().panel_rows);
constexpr std::int64_t kSquare = 32;  // rows and steps of A by columns that are turned at a time

constexpr int kVectors = static_cast<int>(kStrip) / kLanes;  // of a row of C in registers

VEC_INLINE U32 pairs_at(const std::uint32_t* p) {
  U32 pairs;
  __builtin_memcpy(&pairs, p, sizeof pairs);
  return pairs;
}

/// sum + a · b, lane by lane the products of both halves.
#if defined(__AVX512BF16__)
VEC_INLINE F32 add_products(F32 sum, U32 a, U32 b) {
  return (F32)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#else
VEC_INLINE F32 add_products(F32 sum, U32 a, U32 b) {
  const U32 upper = splat_u32(0xFFFF0000u);
  sum += (F32)(a & upper) * (F32)(b & upper);
  sum += (F32)(a << 16) * (F32)(b << 16);
  return sum;
}
#endif

/// c[kRows][kStrip] (+)= a · b over `pairs` of steps.
template <int kRows>
void multiply(const std::uint32_t* __restrict a, const std::uint32_t* __restrict b, std::int64_t pairs,
              float* __restrict c, bool add) {
  F32 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = add ? load(c + r * kStrip + v * kLanes) : F32{};
#pragma GCC unroll 2
  for (std::int64_t p = 0; p < pairs; ++p) {
    U32 row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row[v] = pairs_at(b + p * kStrip + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const U32 x = splat_u32(a[r * kPairStride + p]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = add_products(sum[r][v], x, row[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(c + r * kStrip + v * kLanes, sum[r][v]);
}

using Multiply = void (*)(const std::uint32_t*, const std::uint32_t*, std::int64_t, float*, bool);

/// The loop for `rows` of 1 to kPanel.
template <int kRows = kPanel>
Multiply multiply_for(std::int64_t rows) {
  if constexpr (kRows == 1)
    return multiply<1>;
  else
    return rows == kRows ? multiply<kRows> : multiply_for<kRows - 1>(rows);
}

/// `rows` of A that lies by rows.
void copy_rows(const Bf16* a, std::int64_t lda, std::int64_t rows, std::int64_t steps, std::uint32_t* to) {
  for (std::int64_t i = 0; i < rows; ++i, a += lda, to += kPairStride) {
    if (steps % 2 != 0) to[steps / 2] = 0;
    __builtin_memcpy(to, a, static_cast<std::size_t>(steps) * sizeof(Bf16));
  }
}

/// The same of A that lies by columns: packed as a strip of B is, and turned, square by square.
void copy_columns(const Bf16* a, std::int64_t lda, std::int64_t rows, std::int64_t steps, std::uint32_t* to) {
  alignas(64) std::uint32_t lines[kSquare / 2 * kStrip];
  for (std::int64_t first = 0; first < rows; first += kSquare)
    for (std::int64_t step = 0; step < steps; step += kSquare) {
      const std::int64_t count = least(rows - first, kSquare);
      pack_lines({a + step * lda + first, lda, 1, steps - step, count}, 0, kSquare / 2, lines);
      for (std::int64_t i = 0; i < count; i += kLanes)
        for (int p = 0; p < kSquare / 2; p += kLanes) {
          U32 square[kLanes];
#pragma GCC unroll 16
          for (int q = 0; q < kLanes; ++q) square[q] = pairs_at(lines + (p + q) * kStrip + i);
          transpose(square);
          const std::int64_t there = least(kLanes, count - i);
          for (std::int64_t r = 0; r < there; ++r)
            __builtin_memcpy(to + (first + i + r) * kPairStride + step / 2 + p, &square[r], sizeof(U32));
        }
    }
}

/// One part's work and where its scratch lies.
struct Worker {
  const Problem& problem;
  const Blocking& blocking;
  PackedBlocks block_of_b;
  std::uint32_t* a;
  float* c;

  std::int64_t steps_of(std::int64_t block) const { return block_of_b.steps(block); }
  std::uint32_t* block_of_a(std::int64_t block) const {
    return a + block % blocking.blocks_at_once * blocking.rows * kPairStride;
  }

  void copy_a(std::int64_t row, std::int64_t rows, std::int64_t block) const {
    const Bf16* from = static_cast<const Bf16*>(problem.a);
    const std::int64_t step = block * blocking.depth;
    if (problem.a_order == Order::rows)
      copy_rows(from + row * problem.lda + step, problem.lda, rows, steps_of(block), block_of_a(block));
    else
      copy_columns(from + step * problem.lda + row, problem.lda, rows, steps_of(block), block_of_a(block));
  }

  /// sums (+)= block · strip in panels of `panel` rows; after the last block each goes to C at once.
  void multiply_block(std::int64_t row, std::int64_t rows, std::int64_t panel, std::int64_t strip, std::int64_t block,
                      float* sums, Ahead ahead) const {
    const std::uint32_t* b_block = block_of_b(strip, block);
    const std::int64_t pairs = divide_up(steps_of(block), 2), lines = divide_up(ahead.lines(), divide_up(rows, panel));
    for (std::int64_t i = 0; i < rows; i += panel) {
      const std::int64_t count = least(panel, rows - i);
      ahead.ask(lines);
      multiply_for(count)(block_of_a(block) + i * kPairStride, b_block, pairs, sums + i * kStrip, block > 0);
      if (block + 1 == blocking.blocks) finish_rows<Bf16>(problem, sums + i * kStrip, row + i, count, strip);
    }
  }

  void rows_of_c(std::int64_t row, std::int64_t rows, const Part& part) const {
    const std::int64_t panel = divide_up(rows, divide_up(rows, kPanel));  // of equal size
    for_each_block(
        blocking, part, block_of_b, c,
        [&](std::int64_t first, std::int64_t end) {
          for (std::int64_t block = first; block < end; ++block) copy_a(row, rows, block);
        },
        [&](std::int64_t strip, std::int64_t block, float* sums, const Ahead& ahead) {
          multiply_block(row, rows, panel, strip, block, sums, ahead);
        });
  }
};

}  // namespace

void pairs_part(const Problem& problem, const Blocking& blocking, const Part& part, unsigned char* scratch) {
  const Worker worker{problem,
                      blocking,
                      {problem, blocking, reinterpret_cast<std::uint32_t*>(scratch + blocking.a_bytes)},
                      reinterpret_cast<std::uint32_t*>(scratch),
                      reinterpret_cast<float*>(scratch + blocking.a_bytes + blocking.b_bytes)};
  const std::int64_t count = part.row_end - part.row, chunks = divide_up(count, blocking.rows);
  const std::int64_t chunk = chunks ? gemm::round_up(divide_up(count, chunks), kPanel) : 0;
  for (std::int64_t row = part.row; row < part.row_end; row += chunk)
    worker.rows_of_c(row, least(chunk, part.row_end - row), part);
  fence();
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
