// The order of the blocks of a product, for loops files.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/blocking.h"
#include "kernels/cpu/runtime/ahead.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

/// Steps of k in a block.
inline std::int64_t steps_of(const gemm::Problem& p, const gemm::Blocking& blocking, std::int64_t block) {
  return gemm::least(blocking.depth, p.k - block * blocking.depth);
}

/// A block of a strip of a B of T by rows or by columns.
template <typename T>
Ahead ahead_of_plain(const gemm::Problem& p, const gemm::Blocking& blocking, std::int64_t strip, std::int64_t block) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  const std::int64_t step = block * blocking.depth, column = strip * gemm::kStrip,
                     columns = gemm::least(gemm::kStrip, p.n - column), steps = steps_of(p, blocking, block);
  const T* from = static_cast<const T*>(p.b);
  if (p.b_order == gemm::Order::rows) return {from + step * p.ldb + column, p.ldb * kSize, steps, columns * kSize};
  return {from + column * p.ldb + step, p.ldb * kSize, columns, steps * kSize};
}

/// The order of blocks of every method: as many of k as are at once, of them all strips of C, of those all blocks.
/// begin(first, end) comes before the blocks [first, end), then multiply(strip, block, sums, ahead) for each: `sums` of
/// the strip among those at c, `ahead` what blocks.ahead_of names for the block that follows.
template <typename Blocks, typename Begin, typename Multiply>
void for_each_block(const gemm::Blocking& blocking, const gemm::Part& part, const Blocks& blocks, float* c, Begin begin,
                    Multiply multiply) {
  for (std::int64_t first = 0; first < blocking.blocks; first += blocking.blocks_at_once) {
    const std::int64_t end = gemm::least(first + blocking.blocks_at_once, blocking.blocks);
    begin(first, end);
    for (std::int64_t strip = part.strip; strip < part.strip_end; ++strip) {
      float* const sums = c + (blocking.sums_wait() ? (strip - part.strip) * blocking.rows * gemm::kStrip : 0);
      for (std::int64_t block = first; block < end; ++block)
        multiply(strip, block, sums,
                 block + 1 < end              ? blocks.ahead_of(strip, block + 1)
                 : strip + 1 < part.strip_end ? blocks.ahead_of(strip + 1, first)
                                              : Ahead());
    }
  }
}

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
