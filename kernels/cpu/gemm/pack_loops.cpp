// Packs bf16 matrices into strips (packed.h): steps that lie in rows are interleaved, steps that lie along rows are
// transposed as words, a square of registers at a time.
#include "kernels/cpu/gemm/packed.h"
#include "kernels/cpu/gemm/transpose.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

using gemm::kStrip;
using gemm::Packing;

VEC_INLINE std::uint32_t pair(const Bf16* even, const Bf16* odd) {
  return (even ? even->bits : 0u) | (odd ? static_cast<std::uint32_t>(odd->bits) << 16 : 0u);
}

/// Lines [line, line_end) of the first `columns` columns, element by element; what lies outside of k is 0.
void pack_edge(const Packing& p, const Bf16* from, std::int64_t columns, std::int64_t line, std::int64_t line_end,
               std::uint32_t* to) {
  const std::int64_t row_step = p.order == gemm::Order::rows ? p.ld : 1, column_step = p.order == gemm::Order::rows ? 1 : p.ld;
  for (; line < line_end; ++line)
    for (std::int64_t j = 0; j < columns; ++j) {
      const Bf16* even = from + 2 * line * row_step + j * column_step;
      to[line * kStrip + j] = pair(2 * line < p.k ? even : nullptr, 2 * line + 1 < p.k ? even + row_step : nullptr);
    }
}

void zero_columns(std::int64_t columns, std::int64_t lines, std::uint32_t* to) {
  for (std::int64_t line = 0; line < lines; ++line)
    for (std::int64_t j = columns; j < kStrip; ++j) to[line * kStrip + j] = 0;
}

/// All whole lines of a strip whose steps lie in rows; returns the first line left.
std::int64_t interleave(const Packing& p, const Bf16* from, std::uint32_t* to) {
  std::int64_t line = 0;
  for (; 2 * line + 1 < p.k; ++line) {
    const Bf16 *even = from + 2 * line * p.ld, *odd = even + p.ld;
#pragma GCC unroll 8
    for (int j = 0; j < kStrip; j += kLanes) {
      const I32 low = (I32)((U32)load(even + j) >> 16), high = bits_of(load(odd + j));
      store(reinterpret_cast<float*>(to + line * kStrip + j), from_bits(low | high));
    }
  }
  return line;
}

/// All whole squares of a strip whose steps lie along rows; returns the first line left.
std::int64_t transpose_pairs(const Packing& p, const Bf16* from, std::uint32_t* to) {
  std::int64_t line = 0;
  for (; 2 * (line + kLanes) <= p.k; line += kLanes)
    for (int j = 0; j < kStrip; j += kLanes) {
      U32 square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) __builtin_memcpy(&square[i], from + (j + i) * p.ld + 2 * line, sizeof(U32));
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) __builtin_memcpy(to + (line + i) * kStrip + j, &square[i], sizeof(U32));
    }
  return line;
}

}  // namespace

void pack_strips(const Packing& p, std::int64_t strip, std::int64_t strip_end) {
  const std::int64_t lines = gemm::packed_steps(p.k) / 2;
  const bool by_rows = p.order == gemm::Order::rows;
  for (; strip < strip_end; ++strip) {
    const std::int64_t left = p.n - strip * kStrip, columns = left < kStrip ? left : kStrip;
    const Bf16* from = static_cast<const Bf16*>(p.from) + strip * kStrip * (by_rows ? 1 : p.ld);
    std::uint32_t* to = static_cast<std::uint32_t*>(p.to) + strip * lines * kStrip;
    std::int64_t line = 0;
    if (columns == kStrip) line = by_rows ? interleave(p, from, to) : transpose_pairs(p, from, to);
    pack_edge(p, from, columns, line, lines, to);
    zero_columns(columns, lines, to);
  }
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
