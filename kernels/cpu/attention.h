// What preparation of attention hands to its loops: sizes and addresses. There are two ways (attention_way.h):
//
// - attention_forward_loops.cpp, attention_backward_loops.cpp: all arithmetic in f32, for every instruction set. bf16 is
//   widened where a head's rows are packed. Products run at the rate of the FMAs; vdpbf16ps in their place would halve it
//   (on Sapphire Rapids it issues every second cycle).
// - attention_amx_*_loops.cpp: bf16 products on AMX tiles, softmax in f32.
//
// Prefetching the rows that the next head will pack was tried and gained nothing.
#pragma once

#include <cstdint>

namespace trainer::kernels::cpu {

/// Queries and keys are worked on in blocks of this many; scratch is padded to whole blocks.
inline constexpr std::int64_t kAttentionBlock = 64;

// Members are always inlined, as in bf16.h: loops of different instruction sets include this.
struct AttentionSizes {
  std::int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = true;
  bool bf16 = false;
  std::int64_t q_stride = 0;   ///< elements from one token's q to the next token's; also of dq
  std::int64_t kv_stride = 0;  ///< the same for k and v, dk and dv
  /// [seq][head_dim]: the cosines of a position's head_dim/2 angles, then their sines; null without RoPE.
  const float* rotation = nullptr;

  [[gnu::always_inline]] constexpr std::int64_t group() const { return heads / kv_heads; }
  [[gnu::always_inline]] constexpr std::int64_t query_blocks() const { return (seq + kAttentionBlock - 1) / kAttentionBlock; }
  [[gnu::always_inline]] constexpr std::int64_t padded_seq() const { return query_blocks() * kAttentionBlock; }
  /// Floats of a row in scratch: whole vectors of every instruction set.
  [[gnu::always_inline]] constexpr std::int64_t padded_dim() const { return (head_dim + 15) / 16 * 16; }
  /// The same for tiles: whole steps of a sum over dims.
  [[gnu::always_inline]] constexpr std::int64_t tile_dim() const { return (head_dim + 31) / 32 * 32; }
};

/// Addresses of one run; elements of q, k, v, o and their gradients are f32 or bf16 as AttentionSizes says.
struct AttentionOperands {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const float* lse = nullptr;  ///< backward only
  const void *d_o = nullptr, *o = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void* o_out = nullptr;  ///< forward only
  float* lse_out = nullptr;
};

}  // namespace trainer::kernels::cpu
