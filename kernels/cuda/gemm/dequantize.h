// A quantized weight (kernels/quantized.h) as a plain one, for the products that cuBLASLt does.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/quantized_sizes.h"

namespace trainer::kernels::cuda {

/// w c [out, in], row-major: each element f32 value(code) · scale, rounded to c. `groups`: of nf4, else null.
void dequantize(const Call& call, const QuantizedSizes& sizes, const void* codes, const void* scales,
                const void* groups, void* w);

}  // namespace trainer::kernels::cuda
