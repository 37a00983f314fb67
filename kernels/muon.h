// Muon: momentum, and an update of whole matrices whose singular values Newton–Schulz steps have moved near 1.
//
//   muon_momentum  gradient r [n], momentum [n], scalars f32 [4], applied i32 [1] → u f32 [n]; (momentum in place)
//   muon           master f32 [n], u f32 [parts, n], lr f32 [1], scalars f32 [4], applied i32 [1],
//                  working bf16 or f16 [n]? (f16: GPUs) → (master, working? in place)
//
// muon_momentum: with g = gradient · factor, b = b + (1 − momentum)(g − b), and u = nesterov ? g + momentum (b − g) :
// b. The momentum is f32, bf16, or u8 with scales as the states in optimizer.h. Where factor is 0 the momentum stays as
// it is, and u is 0.
//
// muon: the unit's flat order has `elements` elements, of which this rank has [first, first + n); Call::origin = index
// · elements + first, where index says which of the `parts` ranks along the axis that cuts the matrices this one is. u
// is what those ranks hold of the same [first, first + n), one below the other. `matrices` lists the unit's matrices
// (engine/core/muon.h); those in [first, first + n) are this rank's, and none crosses its borders. Of each, with G the
// whole matrix of u, put together from the parts where it is cut:
//
//   X = G / max(‖G‖, eps), by the Frobenius norm
//   `steps` times: A = X·Xᵀ, X = a X + (b A + c A²) X, with (a, b, c) = (3.4445, −4.7750, 2.0315)
//   w = w (1 − lr · weight_decay) − lr · r · X, of X this rank's piece
//     adjust `original`: r = √max(1, rows / cols), `match_rms_adamw`: r = 0.2 √max(rows, cols), of the whole matrix
//
// A is made of the smaller side: of a matrix with more rows than columns A = Xᵀ·X, and X = X (a + b A + c A²), which is
// the same as of the transposed matrix. A zero matrix stays zero. Where factor is 0 nothing is done at all. Elements
// between the matrices stay as they are. CPUs compute in f32. GPUs round the operands of products to bf16, X once a
// step, and sum in f32.
//
// Attributes: momentum (real), nesterov; steps (integer), adjust, weight_decay (real), eps (real), elements, matrices,
// working.
// Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; Liu et al., "Muon
// is Scalable for LLM Training", 2025 (match_rms_adamw); as torch.optim.Muon defines both.
#pragma once

#include <vector>

#include "engine/core/muon.h"
#include "kernels/newton_schulz.h"
#include "kernels/prepare.h"

namespace trainer::kernels {

struct MuonOperands {
  static constexpr int master = 0, u = 1, lr = 2, scalars = 3, applied = 4, working = 5;
};

/// The op muon, read off its signature, which is checked.
struct MuonUpdate {
  std::int64_t count = 0, parts = 1, elements = 0;
  std::int64_t steps = 0;
  double weight_decay = 0, eps = 0;
  bool matches_adamw = false;  ///< adjust
  bool working = false;
  std::vector<MuonMatrix> matrices;  ///< that may be a rank's: no longer than its slice
  /// Of the whole matrices, those of the largest product of sides and of the largest smaller side: what workspaces are
  /// made for.
  std::int64_t most_elements = 0, most_small = 0;

  /// The rank's place: which of the parts it is, and where its slice begins in the unit.
  std::int64_t index(const Call& call) const { return call.origin / elements; }
  std::int64_t first(const Call& call) const { return call.origin % elements; }
  /// Whether `matrix` is of the slice that begins at `first`, or Bug where it crosses a border.
  bool has(const MuonMatrix& matrix, std::int64_t first) const;
  /// What lr is multiplied by.
  double adjustment(const MuonMatrix& matrix) const;
};

MuonUpdate muon_update(const Signature& signature);

}  // namespace trainer::kernels
