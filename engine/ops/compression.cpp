// Ops that make gradients smaller before they travel, and gradients again of what arrives (kernels/compression.h).
#include "engine/ops/common.h"

namespace trainer::define {
OpDef compress_bf16() { return {.op = Op::compress_bf16}; }
OpDef quantize_int8() { return {.op = Op::quantize_int8}; }
OpDef dequantize_int8() { return {.op = Op::dequantize_int8}; }
OpDef dequantize_sum_int8() { return {.op = Op::dequantize_sum_int8}; }
OpDef top_k_compress() { return {.op = Op::top_k_compress}; }
OpDef top_k_sum() { return {.op = Op::top_k_sum}; }

}  // namespace trainer::define
