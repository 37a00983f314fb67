// Attention on GPUs, between preparation (attention.cpp) and kernels. No device code here.
//
// cuDNN's fused kernels (cudnn_attention.h), the gradient in pieces, where uses_cudnn and cudnn_pieces say so and the
// library takes them; else own kernels, FlashAttention-2 without atomics: forward.cu and backward.cu on tensor cores
// for bf16 and f16, f32.cu by plain FMAs, passes.cu for what comes before. head_dim up to 256; any sequence.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/runtime.h"

namespace trainer::kernels::cuda {

inline constexpr int kLargestHeadDim = 256;

/// Vectors of heads: element d of head h of token n (batch · tokens of a sample + place in it) is data[n · stride + h ·
/// dim + d], dim being the size of such a head.
struct HeadRows {
  void* data = nullptr;
  std::int64_t stride = 0;
};

/// The positions [first, end) of a position's document. Of padding `first` is the number of keys and `end` the first
/// that is padding: no position is one of them, and the bounds of rows that follow one another never descend.
struct alignas(8) DocumentBounds {
  int first, end;
};

/// What one launch works on. q, o, do and dq have `queries` tokens a sample, of which the first stands at position
/// `origin`; k, v, dk and dv have `keys`, from position 0 on. lse and delta are f32 [batch, heads, queries].
struct AttentionArguments {
  HeadRows q, k, v, o, d_o, dq, dk, dv;
  float* lse = nullptr;
  float* delta = nullptr;
  const std::int32_t* lengths = nullptr;      ///< by sample, of its keys; null: all are there
  const DocumentBounds* documents = nullptr;  ///< [batch, keys], by position; null: a sample is one document
  Fault* fault = nullptr;                     ///< forward alone: where a length or document that is none is told
  int batch = 0, queries = 0, keys = 0, origin = 0, heads = 0, kv_heads = 0;
  int head_dim = 0, v_dim = 0;  ///< of q and k, and of v, o and do

  int widest() const { return head_dim > v_dim ? head_dim : v_dim; }

  bool causal = false;
  bool vectors = false;  ///< rows of heads begin at 16-byte boundaries and are whole vectors
  float scale = 0;       ///< on scores
  int window = 0;        ///< a query at position p sees no key before p − window + 1; no window: beyond all positions
  float softcap = 0;     ///< 0: none
};

/// RoPE: pair j turns by position · turns[j] whole turns, and is multiplied by `factor`. By value, so that kernels find
/// it among their parameters.
struct Rotation {
  int half = 0;              ///< pairs of a head, among its first elements; 0: no rotation
  bool interleaved = false;  ///< pairs are neighbours, not elements of two halves
  float factor = 1;
  double turns[kLargestHeadDim / 2] = {};
};

/// By the attributes of a signature whose heads have `head_dim` elements.
Rotation rotation_of(const Signature& signature, std::int64_t head_dim);

/// The bounds of the documents of the batch's keys, which have these numbers; told where they are none, if there is a
/// fault.
void find_document_bounds(const Call& call, const AttentionArguments& arguments, const std::int32_t* numbers,
                          DocumentBounds* to);
/// rope(q) and rope(k), rounded to `dtype`, to dense rows.
void rotate_heads(const Call& call, DType dtype, const AttentionArguments& arguments, const Rotation& rotation,
                  HeadRows to_q, HeadRows to_k);
/// delta = do · o.
void attention_delta(const Call& call, DType dtype, const AttentionArguments& arguments);

// q and k come rotated; dq and dk leave turned back by `rotation`. `allow_*` once, when a kernel is prepared.
void attention_forward(const Call& call, DType dtype, const AttentionArguments& arguments);
void attention_backward(const Call& call, DType dtype, const AttentionArguments& arguments, const Rotation& rotation);
void allow_attention_forward(DType dtype, int head_dim);
void allow_attention_backward(DType dtype, int head_dim);

// The same for f32.
void attention_forward_f32(const Call& call, const AttentionArguments& arguments);
void attention_backward_f32(const Call& call, const AttentionArguments& arguments, const Rotation& rotation);
void allow_attention_forward_f32(int head_dim);
void allow_attention_backward_f32(int head_dim);

}  // namespace trainer::kernels::cuda
