// Operands of products in fp8: quantized from bf16 (fp8_quantize.cu).
#pragma once

#include "kernels/cuda/gemm/fp8_operands.h"
#include "kernels/kernel.h"

namespace trainer::kernels::cuda {

/// Codes u8 [outer, inner] and scales of x, bf16 [outer, inner], or [inner, outer] where it is `transposed`. A scale is
/// the block's largest magnitude divided by the largest code (448, 57344), so that no code saturates; of row_32 the
/// power of two above it. Codes are rounded to nearest even. A block that holds what is not finite gives NaN.
///
/// REQUIRES: outer and inner are multiples of 16. `largest` is f32 [Fp8Workspace::kLargest], for scales of a tensor.
void quantize_fp8(const Call& call, const Fp8Operand& operand, Fp8Code code, bool transposed, const void* x,
                  void* codes, void* scales, float* largest);

}  // namespace trainer::kernels::cuda
