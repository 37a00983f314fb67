// Which attention on GPUs is cuDNN's fused kernel, and how its gradient is cut into pieces. Rules by shape and compute
// capability alone, so that plans and predictions are the same with and without cuDNN
// (kernels/cuda/attention/cudnn_attention.h).
//
// cuDNN's deterministic gradient keeps the gradients of the scores (dP) of all heads in its workspace, 2 bytes each,
// and makes dq of them in a second kernel; on compute capability 10.x it adds to dq in order instead. Where keys are
// shared by heads it also keeps dk and dv of each head. The formulas are those of the plans of cuDNN 9.19
// (tests/cuda/cudnn_plans_test.cpp).
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

namespace trainer {

struct FusedAttentionShape {
  DType dtype = DType::f32;
  std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0;
  std::int64_t head_dim = 0, v_dim = 0;  ///< of q and k, and of v and o
  bool special = false;                  ///< a softcap, a window, lengths or documents
};

/// bf16 or f16, heads of whole vectors up to 128 elements, of values as of keys, queries of the whole sequence.
constexpr bool has_fused_kernel(const FusedAttentionShape& a) {
  return (a.dtype == DType::bf16 || a.dtype == DType::f16) && a.head_dim % 8 == 0 && a.head_dim <= 128 &&
         a.v_dim == a.head_dim && a.queries > 1 && a.queries == a.keys && !a.special;
}

/// The pieces in which the fused gradient is computed one after the other: whole samples, or one sample's groups of
/// heads that share keys.
struct FusedGradPieces {
  std::int64_t samples = 0;   ///< of a piece; 0: there is no fused gradient
  std::int64_t kv_heads = 0;  ///< of a piece
  std::int64_t count = 0;
  std::int64_t bytes = 0;         ///< of workspace, at most
  std::int64_t scores_bytes = 0;  ///< of it, of the gradients of scores
  std::int64_t heads_bytes = 0;   ///< of it, of dk and dv of each head
};

/// Larger pieces are not expected to gain: four heads of 8,192 tokens are 256 blocks of 128 rows.
inline constexpr std::int64_t kFusedGradBytes = std::int64_t{640} << 20;

/// Of a device with this compute capability (90 for 9.0). Before 9.0 and on consumers' cards, whose tensor cores the
/// own kernel uses as well, moving the gradients of scores costs more than it saves.
constexpr FusedGradPieces fused_grad_pieces(const FusedAttentionShape& a, int capability) {
  const bool in_order = capability / 10 == 10;
  if (!has_fused_kernel(a) || (capability / 10 != 9 && !in_order)) return {};
  const auto heads_of = [&](std::int64_t samples, std::int64_t kv_heads) {
    return samples * (a.heads / a.kv_heads * kv_heads);
  };
  const auto piece = [&](std::int64_t samples, std::int64_t kv_heads) {
    const std::int64_t heads = heads_of(samples, kv_heads), rows = heads * a.keys;
    const auto padded = [&](std::int64_t to) { return (a.keys + to - 1) / to * to; };
    FusedGradPieces p{samples, kv_heads, a.batch / samples * (a.kv_heads / kv_heads)};
    if (!in_order) p.scores_bytes = heads * padded(64) * padded(128) * 2;
    p.heads_bytes = a.heads == a.kv_heads ? 0 : 2 * rows * a.head_dim * (in_order ? 4 : 2);
    p.bytes = p.scores_bytes + p.heads_bytes + rows * 4 + 1024;
    return p;
  };
  const auto largest = [](std::int64_t n, auto fits) {
    for (std::int64_t d = n; d > 0; --d)
      if (n % d == 0 && fits(d)) return d;
    return std::int64_t{0};
  };
  // A piece's part of lse, a number a row, begins at a multiple of 16 bytes.
  const auto fits = [&](const FusedGradPieces& p) {
    return p.bytes <= kFusedGradBytes && (p.count == 1 || heads_of(p.samples, p.kv_heads) * a.keys % 4 == 0);
  };
  if (const std::int64_t samples = largest(a.batch, [&](std::int64_t n) { return fits(piece(n, a.kv_heads)); }))
    return piece(samples, a.kv_heads);
  if (const std::int64_t kv_heads = largest(a.kv_heads, [&](std::int64_t n) { return fits(piece(1, n)); }))
    return piece(1, kv_heads);
  return {};
}

}  // namespace trainer
