// Pairs of sequences, of which one is preferred: how likely a model finds each sequence, and the loss of direct
// preference optimization. Rows are all leading dims of the logits together, those of a sequence one after the other.
//
//   sequence_nll   logits c [sequences, ..., columns] (not read), stats f32 [parts, rows, 5] of cross_entropy_stats
//                  (kernels/loss.h), targets i32 [sequences, ...] → nll f64 [sequences], lse f32 [rows]
//     nll_s = Σ (lse_r − x_r[t_r]) over the rows r of sequence s whose target t_r is not ignore_index
//     Its gradient in the logits is cross_entropy_grad, whose seeds [sequences] are the gradient of nll.
//   dpo_loss       policy f64 [2·pairs], reference f64 [2·pairs], targets → loss f64 [1], figures f64 [4]
//     Of pair i, whose sequence 2i is chosen and 2i + 1 rejected, with a reward r = beta (reference − policy) for each
//     sequence (logarithms of ratios of probabilities, since both are −ln p): loss += −ln σ(r_2i − r_2i+1).
//     figures += {r_2i, r_2i+1, 1 if r_2i > r_2i+1, 1}. A pair without a target that is not ignore_index adds nothing.
//   dpo_loss_grad  policy, reference, targets, seed f32 [1] → dpolicy f32 [2·pairs]
//     ±seed · beta · σ(r_2i+1 − r_2i), + of the chosen sequence; 0 of a pair without a target
//   dpo_count      targets i32 [2·pairs, ...] → count f64 [1]: pairs with a target
//
// `accumulate` adds to the f64 outputs of dpo_loss and dpo_count. Arithmetic is f64; the seed and dpolicy are f32. Sums
// are in an order that shapes alone fix.
// Source: Rafailov et al., "Direct Preference Optimization: Your Language Model is Secretly a Reward Model", 2023,
// equations 5 and 7.
#pragma once

#include <cstdint>

#include "kernels/prepare.h"

namespace trainer::kernels {

/// Operands of sequence_nll and sizes that follow from them.
struct SequenceNllSizes {
  std::int64_t parts, rows, sequences, classes, ignore_index;
};
/// Raises Bug for operands that do not fit.
SequenceNllSizes sequence_nll_sizes(const Signature& signature);

/// Of dpo_loss, dpo_loss_grad and dpo_count. `length`: targets of a sequence.
struct PairSizes {
  std::int64_t pairs, length, ignore_index;
  double beta;  ///< 0 of dpo_count
};
/// Raises Bug for operands that do not fit.
PairSizes pair_sizes(const Signature& signature);

}  // namespace trainer::kernels
