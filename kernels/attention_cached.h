// attention_cached: causal attention of the newest tokens of a sequence, for all devices. The keys and values of the
// tokens before them lie in caches, and theirs are added, so that each token's are computed once.
//
// `position` is that of the first of the T new tokens. Token i of them stands at p_i = position + i. First
//
//   k_cache[p_i] = rope(k_i), v_cache[p_i] = v_i
//
// and then, with h = n / (heads / kv_heads) the kv head of query head n,
//
//   s_ij = scale · rope(q_i)·k_cache[j], and with a softcap c instead c tanh(s_ij / c), over j ≤ p_i, and with a window
//          w over p_i − w < j ≤ p_i
//   o_i = Σ_j softmax_j(s_ij) v_cache[j]
//
// What the caches hold beyond the new tokens is neither read nor changed.
//
// Operands (c: the compute dtype; batch B, T new tokens, room for C tokens, heads of D elements, of values E):
//   q c [B, T, heads·D], k c [B, T, kv_heads·D], v c [B, T, kv_heads·E], position i32 [1],
//   k_cache c [B, C, kv_heads·D] and v_cache c [B, C, kv_heads·E], changed in place → o c [B, T, heads·E]
// Attributes: those of attention (kernels/attention.h), without causal and packed. Each device decides how a rotated
// key lies in its row of the cache: only its own kernels read it.
// REQUIRES: 0 ≤ position ≤ C − T. Where the kernel sees the position (CPUs), anything else raises Bug; elsewhere the
// tokens that do not fit are left out.
//
// Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 2.1.
#pragma once

#include "kernels/kernel.h"

namespace trainer::kernels {

/// Operands by index.
struct CachedAttentionOperands {
  static constexpr int q = 0, k = 1, v = 2, position = 3, k_cache = 4, v_cache = 5, o = 6, count = 7;
};

struct CachedAttentionShape {
  DType dtype = DType::f32;
  std::int64_t batch = 0, tokens = 0, room = 0, heads = 0, kv_heads = 0;
  std::int64_t head_dim = 0, v_dim = 0;  ///< of q and k, and of v and o
  double scale = 0;                      ///< on scores
  double softcap = 0;                    ///< 0: none
  std::int64_t window = 0;               ///< keys that a token sees at most; `room`: no window
};

/// Raises Bug where the operands do not fit together.
CachedAttentionShape cached_attention_shape(const Signature& signature);

/// Raises Bug unless the new tokens fit into the caches.
void expect_cached_position(const CachedAttentionShape& shape, std::int64_t position);

}  // namespace trainer::kernels
