// The workspace of expert_linear and its gradients: known to their kernels and to planning, which counts it. No CUDA
// here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/experts.h"

namespace trainer::kernels::cuda {

/// Rows of a tile of one expert's product.
inline constexpr std::int64_t kExpertTile = 64;

/// Where things begin, in bytes. Rows are choices sorted by expert.
struct ExpertWorkspace {
  std::int64_t begin;  ///< i32 [experts + 1]: the first row of each expert
  std::int64_t order;  ///< i32 [choices]: the choice of each row
  std::int64_t place;  ///< i32 [choices]: the row of each choice, or -1
  std::int64_t tiles;  ///< i32 [2 · most_tiles]: the expert and the first row of each tile; -1 behind the last
  std::int64_t rows;   ///< f32 [choices, columns]: products that are still to be summed
  std::int64_t end;
  std::int64_t most_tiles;

  ExpertWorkspace(const ExpertSizes& s, std::int64_t columns) {
    const auto aligned = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
    most_tiles = s.choices() / kExpertTile + std::min(s.experts, s.choices());
    begin = 0;
    order = aligned(4 * (s.experts + 1));
    place = order + aligned(4 * s.choices());
    tiles = place + aligned(4 * s.choices());
    rows = tiles + aligned(8 * most_tiles);
    end = rows + aligned(4 * s.choices() * columns);
  }
};

/// Columns of products that are summed for each token: those of y or dx where they have a row for a token.
inline std::int64_t summed_columns(const Signature& signature, const ExpertSizes& s) {
  if (signature.op == Op::expert_linear) return s.y_by_choice ? 0 : s.out;
  if (signature.op == Op::expert_linear_grad_input) return s.x_by_choice ? 0 : s.in;
  return 0;
}

}  // namespace trainer::kernels::cuda
