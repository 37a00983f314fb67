// Blocks of a bf16 B in pairs of steps, for loops files: where B has been packed as a whole (packed.h), or packed one
// by one into scratch, which the innermost loop then finds in L1.
#pragma once

#include "kernels/cpu/gemm/block_order.h"
#include "kernels/cpu/gemm/blocking.h"
#include "kernels/cpu/gemm/pack_lines.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

struct PackedBlocks {
  const gemm::Problem& problem;
  const gemm::Blocking& blocking;
  std::uint32_t* scratch;  ///< of one block

  std::int64_t steps(std::int64_t block) const { return steps_of(problem, blocking, block); }
  /// Pairs of steps of a block, in whole tiles; behind the last step of B they are 0.
  std::int64_t lines_of(std::int64_t block) const { return gemm::packed_steps(steps(block)) / 2; }

  /// [lines_of(block)][kStrip] words.
  const std::uint32_t* operator()(std::int64_t strip, std::int64_t block) const {
    const std::int64_t line = block * blocking.depth / 2;
    if (problem.b_order == gemm::Order::strips) return packed(strip, line);
    pack_lines(strip_view(problem.b, problem.ldb, problem.b_order, problem.k, problem.n, strip), line,
               line + lines_of(block), scratch);
    return scratch;
  }

  /// What the block is read from.
  Ahead ahead_of(std::int64_t strip, std::int64_t block) const {
    if (problem.b_order != gemm::Order::strips) return ahead_of_plain<Bf16>(problem, blocking, strip, block);
    const std::int64_t line_bytes = gemm::kStrip * static_cast<std::int64_t>(sizeof(std::uint32_t));
    return {packed(strip, block * blocking.depth / 2), 0, 1, lines_of(block) * line_bytes};
  }

 private:
  const std::uint32_t* packed(std::int64_t strip, std::int64_t line) const {
    return static_cast<const std::uint32_t*>(problem.b) + strip * gemm::packed_strip_words(problem.k) +
           line * gemm::kStrip;
  }
};

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
