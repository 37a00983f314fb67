// Figures of Muon that kernels, costs and bounds share.
#pragma once

#include <cstdint>

namespace trainer {

/// What the orthogonalized update of a whole matrix is multiplied by: sqrt(max(1, rows / cols)), or, so that its
/// elements are as large as those of AdamW's updates, 0.2 sqrt(max(rows, cols)).
double muon_adjustment(std::int64_t rows, std::int64_t cols, bool matches_adamw);

/// FLOPs of the products of `steps` Newton–Schulz steps of a whole matrix: with s the smaller and l the larger side, a
/// step has X·Xᵀ (2 s² l), its square (2 s³) and the polynomial times X (2 s² l).
double newton_schulz_flops(std::int64_t rows, std::int64_t cols, std::int64_t steps);

}  // namespace trainer
