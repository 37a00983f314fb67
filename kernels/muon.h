// Muon: momentum, and an update of whole matrices whose singular values Newton–Schulz steps have moved near 1. Three
// ops, so that the plan can move matrices to the ranks that compute them in between:
//
//   muon_momentum       gradient r [n], momentum [n], scalars f32 [4], applied i32 [1] → u f32 [n]; (momentum in place)
//   muon_orthogonalize  x f32 [parts, n], scalars f32 [4] → x (in place)
//   muon                master f32 [n], x f32 [n], lr f32 [1], scalars f32 [4], applied i32 [1],
//                       working bf16 or f16 [n]? (f16: GPUs)
//                       → master, working? (in place)
//
// muon_momentum: with g = gradient · factor, b = b + (1 − momentum)(g − b), and
// u = nesterov ? g + momentum (b − g) : b. The momentum is f32, bf16, or u8 with scales like the states in
// optimizer.h. Where factor is 0 the momentum stays as it is, and u is 0.
//
// muon_orthogonalize: x is a unit in its flat order, as `parts` ranks along the axis that cuts the matrices hold it,
// one below the other. `matrices` lists the unit's matrices and the owner of each (engine/core/matrix_list.h). Of each
// matrix whose owner is Call::origin, with G the whole matrix, put together from the parts where it is cut:
//
//   X = G / max(‖G‖, eps), by the Frobenius norm
//   `steps` times: A = X·Xᵀ, X = a X + (b A + c A²) X, with (a, b, c) = (3.4445, −4.7750, 2.0315)
//   G = r · X, in all parts
//     adjust `original`: r = √max(1, rows / cols), `match_rms_adamw`: r = 0.2 √max(rows, cols), of the whole matrix
//
// and everything else is 0: the whole is the sum over the owners. A is computed on the smaller side: for a matrix with
// more rows than columns A = Xᵀ·X, and X = X (a + b A + c A²), the same as for the transposed matrix. A zero matrix
// stays zero. Where factor is 0, so is x, and nothing is computed. CPUs compute in f32. GPUs round the operands of
// products to bf16, X once a step, and sum in f32.
//
// muon: w = w (1 − lr · weight_decay) − lr · x, as an optimizer of optimizer.h with x for its gradient, which no factor
// scales.
//
// Attributes: momentum (real), nesterov; steps (integer), adjust, eps (real), matrices; weight_decay (real),
// decay_elements, working. Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; Liu
// et al., "Muon is Scalable for LLM Training", 2025 (match_rms_adamw); as torch.optim.Muon defines both.
#pragma once

#include <vector>

#include "engine/core/matrix_list.h"
#include "engine/core/muon.h"
#include "kernels/newton_schulz.h"
#include "kernels/prepare.h"

namespace trainer::kernels {

/// The op muon_orthogonalize, read off its signature, which is checked.
struct MuonMatrices {
  std::int64_t elements = 0, parts = 1;  ///< of x: [parts, elements]
  std::int64_t steps = 0;
  double eps = 0;
  bool matches_adamw = false;  ///< adjust
  std::vector<OwnedMatrix> matrices;
  /// Of the whole matrices, those of the largest product of sides and of the largest smaller side: what workspaces are
  /// made for.
  std::int64_t most_elements = 0, most_small = 0;

  /// What X is multiplied by.
  double adjustment(const OwnedMatrix& matrix) const;
};

MuonMatrices muon_matrices_of(const Signature& signature);

}  // namespace trainer::kernels
