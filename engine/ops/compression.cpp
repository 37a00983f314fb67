// Ops that make gradients smaller before they travel, and gradients again of what arrives (kernels/compression.h).
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

/// The gradient is read, the residual read and written, what is sent written.
OpDef compresses(Op op) {
  OpDef def{.op = op, .min_inputs = 2, .max_inputs = 2};
  def.cost = [](const Signature& signature) {
    Cost cost = moved(signature, 1);
    cost.bytes_written += static_cast<double>(signature.operands[1].bytes());
    return cost;
  };
  return def;
}

}  // namespace

OpDef compress_bf16() { return compresses(Op::compress_bf16); }
OpDef quantize_int8() { return compresses(Op::quantize_int8); }
OpDef dequantize_int8() { return {.op = Op::dequantize_int8, .cost = moves(1)}; }
OpDef dequantize_sum_int8() { return {.op = Op::dequantize_sum_int8, .cost = moves(1)}; }
OpDef top_k_compress() { return compresses(Op::top_k_compress); }
OpDef top_k_sum() { return {.op = Op::top_k_sum, .cost = moves(1)}; }

}  // namespace trainer::define
