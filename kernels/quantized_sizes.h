// Sizes of the products with quantized weights (kernels/quantized.h), read off a signature and checked.
#pragma once

#include <cstdint>

#include "engine/core/signature.h"

namespace trainer::kernels {

struct QuantizedSizes {
  bool nf4 = false;
  DType compute = DType::f32;
  std::int64_t rows = 0, in = 0, out = 0;
  std::int64_t blocks = 0;  ///< of a row of W
};

/// Of quantized_linear or quantized_linear_grad_input. Raises Bug where operands do not fit each other.
QuantizedSizes quantized_sizes(const Signature& signature);

}  // namespace trainer::kernels
