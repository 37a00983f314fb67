// attention_block, attention_block_grad: attention of a rank's queries and the keys and values of one rank, one step of
// a ring (engine/transform/ring.h), for all devices. Sequences are zigzag over `ranks` (engine/core/zigzag.h): of the
// chunks of c positions, 2·ranks in all, the rank Call::origin has queries of chunks origin and 2·ranks − 1 − origin,
// and at step `step` keys and values of the chunks of rank (origin − step) mod ranks. With the positions p_i and p_j
// that follow, s_ij is that of attention (kernels/attention.h), over these keys only:
//
//   attention_block       lse' = ln Σ_j exp(s_ij), o' = Σ_j exp(s_ij − lse') v_j, and where it `continues`
//                         lse = ln(exp(lse_before) + exp(lse')),
//                         o = exp(lse_before − lse) o_before + exp(lse' − lse) o'
//                         A query that sees none of the keys adds nothing; one that has seen none so far has o = 0 and
//                         lse = −∞.
//   attention_block_grad  o, lse are the whole row's. p_ij = exp(s_ij − lse_i), and dq, dk, dv as attention_grad has
//                         them, dq with dq_before added. A query whose lse is −∞ has no part in it.
//
// After steps 0 to ranks − 1, in any order, o, lse and dq are those of attention over all keys; dk and dv are each
// step's own share.
//
// Operands (c: f32 or bf16): q [B, T, heads·D], k [B, S, kv_heads·D], v [B, S, kv_heads·E], lengths i32 [B] of whole
// sequences, or documents i32 [B, ranks·S] of whole rows; o_before f32 and o [B, T, heads·E], lse [B, heads, T]; o and
// dq are f32, or c where no step follows; dk, dv f32 of the shapes of k and v. T = S where positions count; both are
// even. o may be o_before, lse lse_before and dq dq_before; nothing else shares memory. o is 0 at padding of documents,
// at the last step.
// Attributes: attention's without packed, and ranks, step, continues.
#pragma once

#include "kernels/attention.h"

namespace trainer::kernels {

struct AttentionBlockShape {
  AttentionShape of;  ///< of one rank; no window: as long as the whole sequence
  std::int64_t ranks = 1, step = 0;
  bool continues = false;
  bool last = false;  ///< o, or dq, is in the compute dtype
  /// Operands from q to v, or the lengths or documents.
  int num_inputs() const { return of.num_inputs(); }
};

/// Of a signature of either op. Raises Bug where operands do not fit.
AttentionBlockShape attention_block_shape(const Signature& signature);

/// Raises Bug unless the origin is a rank.
void expect_ring_rank(const AttentionBlockShape& shape, std::int64_t origin);

}  // namespace trainer::kernels
