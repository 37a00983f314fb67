// Workspaces of a GPU's kernels. Every formula is that of the algorithm named beside it. They do not add up: a launch
// has its workspace alone and gives it back, so the largest counts, once, and only where it meets the peak.
#include "kernels/cuda/target.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/core/compression.h"
#include "engine/core/op_record.h"
#include "kernels/attention.h"
#include "kernels/attention_block.h"
#include "kernels/attention_cached.h"
#include "kernels/bias_grad.h"
#include "kernels/conv2d.h"
#include "kernels/cuda/attention/block_workspace.h"
#include "kernels/cuda/convolution/conv2d.h"
#include "kernels/cuda/embedding/embedding_grad.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/gemm/fp8_operands.h"
#include "kernels/cuda/norm/batch_norm.h"
#include "kernels/cuda/optimizer/muon.h"
#include "kernels/cuda/reduction/column_cut.h"
#include "kernels/linear.h"
#include "kernels/quantized_sizes.h"

namespace trainer::kernels::cuda {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kF32 = 4, kF64 = 8;

/// Room for what cuDNN's fused attention asks for: plans of cuDNN 9.19 need 0 or 256 bytes, whatever the sizes.
constexpr std::int64_t kFusedAttention = kMiB;

/// Of gradients of norms: two blocks a multiprocessor each sum their rows, and a second pass joins them in order.
std::int64_t partial_columns(std::int64_t rows, std::int64_t columns, int units) {
  return std::min<std::int64_t>(2 * units, rows) * columns * kF32;
}

/// One number of a whole operand: an f64 for each block of the first pass.
std::int64_t partial_scalars(int units) { return 2 * units * kF64; }

std::int64_t rows_of(const TensorDesc& tensor) {
  return tensor.elements() / std::max<std::int64_t>(1, tensor.shape[-1]);
}

/// Of linear or a gradient of it: that of its product, and codes and scales where it is one of fp8.
std::int64_t linear_workspace(const Signature& s, int capability) {
  const std::int64_t product = product_workspace(capability);
  const auto scales = product_scales(s);
  if (scales == Fp8Scales::none) return product;
  const TensorDesc& first = s.operands[0];
  const std::int64_t rows = rows_of(first), last = first.shape[-1];
  if (s.op == Op::linear_grad_weight) {
    const std::int64_t out = s.operands[LinearGradWeightOperands::dy].shape[-1];
    return product + Fp8Workspace(out, last, rows, scales, false).end;
  }
  const Shape& weight = s.operands[1].shape;
  const std::int64_t columns = s.op == Op::linear ? weight[0] : weight[1];
  return product + Fp8Workspace(rows, columns, last, scales, true).end;
}

/// The bias's gradient is a pass of its own over dy after the product, and so may use the same bytes. A gradient that
/// is rounded apart stands before them in f32.
std::int64_t grad_weight_workspace(const Signature& s, int capability, int units) {
  const TensorDesc& dy = s.operands[LinearGradWeightOperands::dy];
  const std::int64_t bias =
      flag(s, "bias") ? ColumnCut(dy.dtype, rows_of(dy), dy.shape[-1], units).workspace_bytes() : 0;
  const std::int64_t apart =
      rounds_apart(s) ? aligned(s.operands[LinearGradWeightOperands::dweight].elements() * kF32) : 0;
  return apart + std::max(linear_workspace(s, capability), bias);
}

/// FlashAttention reads q and k as they lie; rotated ones are copies.
std::int64_t rotated(const Signature& s, int q) {
  const AttentionShape a = attention_shape(s, q);
  return a.rope_theta == 0 ? 0
                           : a.batch * (a.queries * a.heads + a.keys * a.kv_heads) * a.head_dim *
                                 size_of(s.operands[static_cast<std::size_t>(q)].dtype);
}

/// Where the document of each position begins and ends.
std::int64_t document_bounds(const AttentionShape& a) { return a.by_document ? aligned(2 * a.batch * a.keys * 4) : 0; }

std::int64_t attention_workspace(const Signature& s) {
  return document_bounds(attention_shape(s, 0)) + aligned(rotated(s, 0)) + (uses_cudnn(s) ? kFusedAttention : 0);
}

/// Of the own kernel delta, a number a row; no sums of dq or of shared keys, since a block makes each gradient whole.
std::int64_t attention_grad_workspace(const Signature& s, int capability) {
  const AttentionShape a = attention_shape(s, 1);
  return document_bounds(a) + aligned(rotated(s, 1)) +
         std::max(a.batch * a.heads * a.queries * kF32, cudnn_pieces(s, capability).bytes);
}

/// Sorts (row, place) pairs, so that the gradients of a row are summed in the order of their places.
std::int64_t embedding_grad_workspace(const Signature& s) {
  return 4 * EmbeddingGradWorkspace(s.operands[0].elements(), s.operands[2].shape[0]).words;
}

/// Sums of the parts into which the places of an image are cut; the other passes need nothing.
std::int64_t conv2d_grad_weight_workspace(const Signature& s) {
  const Shape dy = as_images(s.operands[Conv2dGradWeightOperands::dy].shape),
              weight = as_images(s.operands[Conv2dGradWeightOperands::dweight].shape);
  return conv2d_weight_parts(weight[0], weight[1] * weight[2] * weight[3], dy[0] * dy[2] * dy[3]) * weight.elements() *
         kF32;
}

std::int64_t norm_grad_workspace(const Signature& s, int units) {
  if (!flag(s, "weight")) return 0;
  const TensorDesc& dy = s.operands[0];
  const std::int64_t weights = s.op == Op::layer_norm_grad && flag(s, "bias") ? 2 : 1;
  return partial_columns(rows_of(dy), weights * dy.shape[-1], units);
}

/// Two sums of each part of a channel.
std::int64_t batch_norm_sums_workspace(const Signature& s, std::size_t x, int units) {
  const Shape& shape = s.operands[x].shape;
  return batch_norm_parts(shape[1], shape[0], units) * 2 * shape[1] * kF64;
}

/// Of planes one block makes each sum whole.
std::int64_t bias_grad_workspace(const Signature& s, int units) {
  const BiasGradSizes z = bias_grad_sizes(s);
  return z.inner == 1 ? ColumnCut(s.operands[0].dtype, z.rows, z.columns, units).workspace_bytes() : 0;
}

std::int64_t sum_leading_workspace(const Signature& s, int units) {
  const std::int64_t columns = s.operands[1].elements();
  return ColumnCut(s.operands[0].dtype, s.operands[0].elements() / std::max<std::int64_t>(1, columns), columns, units)
      .workspace_bytes();
}

const TensorDesc& targets_of(const Signature& s) { return s.operands[s.op == Op::cross_entropy_gathered ? 2 : 1]; }

/// Radix select: histograms of three digits, and for each chunk of 1024 elements two counts, with their sum after the
/// last.
std::int64_t top_k_workspace(const Signature& s) {
  const std::int64_t chunks = (s.operands[0].elements() + 1023) / 1024;
  return 64 + 3 * 2048 * 4 + 2 * 4 * (chunks + 1);
}

}  // namespace

BlockWorkspace::BlockWorkspace(const Signature& s) {
  const AttentionBlockShape shape = attention_block_shape(s);
  const AttentionShape& a = shape.of;
  const bool forward = s.op == Op::attention_block, sixteen = s.operands[0].dtype != DType::f32;
  const std::int64_t width = size_of(s.operands[0].dtype), chunk = a.queries / 2, keys = a.keys / 2;
  const std::int64_t all_q = a.batch * a.queries * a.heads * a.head_dim,
                     all_k = a.batch * a.keys * a.kv_heads * a.head_dim;
  const auto take = [&](std::int64_t size) {
    const std::int64_t offset = bytes;
    bytes += aligned(size);
    return offset;
  };
  if (a.rope_theta != 0) q = take(all_q * width), k = take(all_k * width);
  if (forward) {
    if (sixteen && shape.last) o = take(a.batch * a.queries * a.heads * a.v_dim * kF32);
    o_new = take(chunk * a.heads * a.v_dim * width), lse_new = take(chunk * a.heads * kF32);
    return;
  }
  dq = take(all_q * kF32), dk = take(all_k * kF32);
  dq_new = take(chunk * a.heads * a.head_dim * width), dk_new = take(keys * a.kv_heads * a.head_dim * width);
  dv_new = take(keys * a.kv_heads * a.v_dim * width);
  lse = take(chunk * a.heads * kF32), delta = take(chunk * a.heads * kF32);
}

std::int64_t dequantized_bytes(const Signature& s) {
  const QuantizedSizes z = quantized_sizes(s);
  return aligned(z.out * z.in * size_of(z.compute));
}

namespace {

std::int64_t workspace(const Signature& s, int capability, int units) {
  if (!has(s.op, Trait::scratch)) return 0;
  switch (s.op) {
    case Op::linear:
    case Op::linear_grad_input:
      return linear_workspace(s, capability);
    case Op::linear_grad_weight:
      return grad_weight_workspace(s, capability, units);
    case Op::expert_linear:
    case Op::expert_linear_grad_input:
    case Op::expert_linear_grad_weight: {
      const ExpertSizes sizes = expert_sizes(s);
      return ExpertWorkspace(sizes, summed_columns(s, sizes)).end;
    }
    case Op::router_losses:
      return flag(s, "counts") || flag(s, "balance") ? 0 : 2 * s.operands[0].shape[0] * kF64;
    case Op::quantized_linear:
    case Op::quantized_linear_grad_input:
      return dequantized_bytes(s) + product_workspace(capability);
    case Op::attention:
      return attention_workspace(s);
    case Op::attention_grad:
      return attention_grad_workspace(s, capability);
    case Op::attention_block:
    case Op::attention_block_grad:
      return BlockWorkspace(s).bytes;
    case Op::attention_cached:  // turned queries
      return s.operands[CachedAttentionOperands::q].bytes();
    case Op::layer_norm_grad:
    case Op::rms_norm_grad:
      return norm_grad_workspace(s, units);
    case Op::batch_norm_sums:
      return batch_norm_sums_workspace(s, 0, units);
    case Op::batch_norm_grad_sums:
      return batch_norm_sums_workspace(s, 1, units);
    case Op::batch_norm:  // coefficients of each channel
    case Op::batch_norm_apply:
      return 3 * s.operands[0].shape[1] * kF32;
    case Op::batch_norm_grad:
      return 5 * s.operands[0].shape[1] * kF32;
    case Op::sum_leading:
      return sum_leading_workspace(s, units);
    case Op::bias_grad:
      return bias_grad_workspace(s, units);
    case Op::embedding_grad:
      return embedding_grad_workspace(s);
    case Op::conv2d_grad_weight:
    case Op::conv1d_grad_weight:
      return conv2d_grad_weight_workspace(s);
    // A row's loss is an f64 that a second pass sums in order.
    case Op::cross_entropy:
    case Op::cross_entropy_and_grad:
    case Op::cross_entropy_gathered:
    case Op::correct_count:
    case Op::correct_count_gathered:
      return targets_of(s).elements() * kF64;
    case Op::cross_entropy_count:
    case Op::mse:
    case Op::mse_count:
    case Op::sum_squares:
      return partial_scalars(units);
    case Op::top_k_compress:
      return top_k_workspace(s);
    case Op::muon_orthogonalize:
      return MuonWorkspace(muon_matrices_of(s), product_workspace(capability)).end;
    // Only on CPUs: here one thread or block computes each output completely.
    case Op::conv2d:
    case Op::conv2d_grad_input:
    case Op::conv1d:
    case Op::conv1d_grad_input:
    case Op::max_pool2d_grad:
      return 0;
    default:
      UNREACHABLE("nobody says how much scratch memory " + std::string(name_of(s.op)) + " needs");
  }
}

}  // namespace

/// What cuBLAS recommends for its workspace: 32 MiB from Hopper on, 4 MiB before (cuBLAS library documentation,
/// cublasSetWorkspace).
std::int64_t product_workspace(int capability) { return capability >= 90 ? 32 * kMiB : 4 * kMiB; }

Fp8Scales product_scales(const Signature& linear) {
  const std::string& word = text(linear, "fp8");
  for (const Fp8Scales scales : {Fp8Scales::tensor, Fp8Scales::block_128, Fp8Scales::block_32})
    if (word == name_of(scales)) return scales;
  return Fp8Scales::none;
}

bool rounds_apart(const Signature& s) {
  const DType r = s.operands[LinearGradWeightOperands::dweight].dtype;
  return r != DType::f32 && r != s.operands[LinearGradWeightOperands::dy].dtype;
}

namespace {

FusedAttentionShape fused_shape(const Signature& s, int q) {
  const AttentionShape a = attention_shape(s, q);
  return {.dtype = s.operands[static_cast<std::size_t>(q)].dtype,
          .batch = a.batch,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .queries = a.queries,
          .keys = a.keys,
          .head_dim = a.head_dim,
          .v_dim = a.v_dim,
          .special = a.softcap != 0 || a.window != a.keys || a.padded || a.by_document};
}

}  // namespace

bool uses_cudnn(const Signature& attention) { return has_fused_kernel(fused_shape(attention, 0)); }

FusedGradPieces cudnn_pieces(const Signature& attention_grad, int capability) {
  return fused_grad_pieces(fused_shape(attention_grad, 1), capability);
}

std::int64_t CudaTarget::workspace_bytes(const Signature& signature) const {
  return padded_to_64(workspace(signature, capability_, units_));
}

}  // namespace trainer::kernels::cuda
