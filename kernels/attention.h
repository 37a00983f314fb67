// attention, attention_grad: scaled dot-product attention of one layer, for all devices. A device never holds a
// seq × seq matrix: probabilities are made block by block and, in the backward pass, made again from lse.
//
// Keys may be those of another sequence than the queries (cross-attention), where neither causality nor rotation asks
// for positions. Else queries may be a part of the sequence: query i stands at position p_i = Call::origin + i, key j
// at position j. With h the kv head of query head n, h = n / (heads / kv_heads):
//
//   s_ij = scale · rope(q_i)·rope(k_j), and with a softcap c instead c tanh(s_ij / c)
//          over all j; causal: over j ≤ p_i; with a window w: over p_i − w < j ≤ p_i; with lengths: over those j
//          that are less than the sample's; with documents: over those j of the same document as p_i
//   lse_i = ln Σ_j exp(s_ij),  p_ij = exp(s_ij − lse_i),  o_i = Σ_j p_ij v_j
//   delta_i = do_i·o_i,  ds_ij = p_ij (do_i·v_j − delta_i), with a softcap times 1 − (s_ij / c)²
//   dq_i = scale · ropeᵀ(Σ_j ds_ij rope(k_j)),  dk_j = scale · ropeᵀ(Σ_i ds_ij rope(q_i)),  dv_j = Σ_i p_ij do_i
//
// Several documents may lie in a row: `documents` has a number for each position of the keys, which never descends, and
// -1 at the end of a row, which pads it. rope counts positions from the beginning of each document. At padding o, lse,
// dq, dk and dv are 0. The work is that of Σ length², not of row²: keys outside of the documents of a block of queries
// are not read.
//
// dk and dv of a kv head are sums over the query heads that share it, and only over these queries: 0 for keys that
// none of them sees. The parts of a sequence, side by side, give o, lse and dq of the whole; their dk and dv add up.
//
// Operands (c: f32 or bf16, the same for all; batch B, T queries, S keys, head_dim D; row-major):
//   attention       packed:  qkv c [B, T, (heads + 2·kv_heads)·D]                                    → o, lse
//                   else:    q c [B, T, heads·D], k c [B, S, kv_heads·D], v c [B, S, kv_heads·E]     → o, lse
//                   o c [B, T, heads·E], lse f32 [B, heads, T]; packed, E = D
//                   padded: lengths i32 [B] behind qkv, or v, of 1 to S keys; no window
//                   by_document: documents i32 [B, S] there; not padded
//   attention_grad  packed:  do c [B, T, heads·E], qkv, lengths | documents?, o, lse                 → dqkv
//                   else:    do, q, k, v, lengths | documents?, o, lse                               → dq, dk, dv
//                   each gradient of the shape of what it is the gradient of; overwritten
// Attributes: heads, kv_heads (divides heads), causal, packed, padded, by_document; scale (1/√head_dim where absent);
// softcap (0: none); window (0: none; else causal); rope_theta (real; 0 or absent: no rotation) and what
// engine/core/rope.h says of rope_interleaved, rope_dims and rope_scaling, by which rope turns a head's vector.
// REQUIRES: where causal, rotated or by document, 0 ≤ origin ≤ S − T, so that packed, or with S = T, the origin is 0. A
// row of packed qkv is all heads of q, then of k, then of v. No output may share memory with an input.
//
// Sources: Dao, "FlashAttention-2", 2023, algorithms 1 and 2; Su et al., "RoFormer", 2021.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernel.h"

namespace trainer::kernels {

struct AttentionShape {
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0;
  std::int64_t head_dim = 0, v_dim = 0;  ///< of q and k, and of v and o
  bool packed = false, causal = true;
  bool padded = false;       ///< each sample has a length
  bool by_document = false;  ///< each position has a document
  double rope_theta = 0;     ///< 0: no rotation
  double scale = 0;          ///< on scores
  double softcap = 0;        ///< 0: none
  std::int64_t window = 0;   ///< a query at position p sees no key before p − window + 1; as many as keys: no window

  /// Operands from q, or qkv, to v, or the lengths or documents.
  int num_inputs() const { return (packed ? 1 : 3) + (padded || by_document ? 1 : 0); }
  /// Whether queries and keys have positions in one sequence.
  bool has_positions() const { return causal || by_document || rope_theta != 0; }
};

/// Of a signature whose q, or qkv, is operand `q`. Raises Bug where the heads do not divide its rows, or keys are fewer
/// than queries.
AttentionShape attention_shape(const Signature& signature, int q);

/// Raises DataError unless each is 1 to `keys`.
void check_lengths(std::span<const std::int32_t> lengths, std::int64_t keys);

/// Raises Bug unless the queries from `origin` on are positions of the keys' sequence.
void expect_attention_origin(const AttentionShape& shape, std::int64_t origin);

}  // namespace trainer::kernels
