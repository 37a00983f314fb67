// Packing of some lines of a strip (packed.h), for loops files: steps that lie in rows are interleaved, steps that lie
// along rows are transposed as words, a square of registers at a time.
#pragma once

#include "kernels/cpu/gemm/packed.h"
#include "kernels/cpu/runtime/transpose.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

/// A strip of B as it lies: element (p, j) at from[p·step + j·across]; one of the two is 1.
struct StripView {
  const Bf16* from;
  std::int64_t step, across;
  std::int64_t k, columns;  ///< columns ≤ kStrip
};

/// Words of the lines [line, line_end), element by element; what lies outside of k and columns is 0.
inline void pack_edge(const StripView& v, std::int64_t line, std::int64_t line_end, std::uint32_t* to) {
  for (; line < line_end; ++line, to += gemm::kStrip)
    for (std::int64_t j = 0; j < gemm::kStrip; ++j) {
      const Bf16* even = v.from + 2 * line * v.step + j * v.across;
      std::uint32_t word = 0;
      if (j < v.columns && 2 * line < v.k) word = even->bits;
      if (j < v.columns && 2 * line + 1 < v.k) word |= static_cast<std::uint32_t>(even[v.step].bits) << 16;
      to[j] = word;
    }
}

inline void interleave(const StripView& v, std::int64_t line, std::uint32_t* to) {
  const Bf16 *even = v.from + 2 * line * v.step, *odd = even + v.step;
#pragma GCC unroll 8
  for (int j = 0; j < gemm::kStrip; j += kLanes) {
    const U32 words = ((U32)load(even + j) >> 16) | (U32)load(odd + j);
    __builtin_memcpy(to + j, &words, sizeof words);
  }
}

/// kLanes lines from `line`.
inline void transpose_pairs(const StripView& v, std::int64_t line, std::uint32_t* to) {
  for (int j = 0; j < gemm::kStrip; j += kLanes) {
    U32 square[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) __builtin_memcpy(&square[i], v.from + (j + i) * v.across + 2 * line, sizeof(U32));
    transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) __builtin_memcpy(to + i * gemm::kStrip + j, &square[i], sizeof(U32));
  }
}

/// The lines [line, line_end) of a strip to `to`.
inline void pack_lines(const StripView& v, std::int64_t line, std::int64_t line_end, std::uint32_t* to) {
  const std::int64_t whole_end =
      v.columns == gemm::kStrip ? gemm::least(line_end, v.k / 2) : line;  // lines with nothing missing
  if (v.across == 1)
    for (; line < whole_end; ++line, to += gemm::kStrip) interleave(v, line, to);
  else
    for (; line + kLanes <= whole_end; line += kLanes, to += kLanes * gemm::kStrip) transpose_pairs(v, line, to);
  pack_edge(v, line, line_end, to);
}

/// Strip `strip` of a matrix by rows or by columns.
inline StripView strip_view(const void* from, std::int64_t ld, gemm::Order order, std::int64_t k, std::int64_t n,
                            std::int64_t strip) {
  const std::int64_t column = strip * gemm::kStrip;
  const bool by_rows = order == gemm::Order::rows;
  return {static_cast<const Bf16*>(from) + column * (by_rows ? 1 : ld), by_rows ? ld : 1, by_rows ? 1 : ld, k,
          gemm::least(gemm::kStrip, n - column)};
}

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
