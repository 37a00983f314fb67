// linear: y = x·Wᵀ + b, and its gradients dx = dy·W, dW = dyᵀ·x, db = sum of dy over rows. Sums are f32; the order of
// their additions depends on shapes alone.
//
// `c` is the compute dtype (f32 or bf16), `r` the dtype of parameter gradients (f32 or bf16); [...] are leading dims, seen
// as rows. A packed weight is what `pack_weight` made (pack_weight.h). No operand may overlap another.
//
// linear               x c [..., in], weight c [out, in] (row-major or packed), bias c [out] if `bias`
//                      → y c [..., out]. With `partial`, for ranks whose outputs are summed afterwards, the bias is added
//                      only where Call::origin is 0
// linear_grad_input    dy c [..., out], weight c [out, in] (row-major or packed_transposed)
//                      → dx c [..., in]
// linear_grad_weight   x c [..., in], dy c [..., out]
//                      → dweight r [out, in], dbias r [out] if `bias`; `accumulate` adds to both
#pragma once

namespace trainer::kernels {

// Where operands stand in signatures and calls.
struct LinearOperands {
  static constexpr int x = 0, weight = 1, bias = 2;
  static constexpr int y(bool has_bias) { return has_bias ? 3 : 2; }
};
struct LinearGradInputOperands {
  static constexpr int dy = 0, weight = 1, dx = 2;
};
struct LinearGradWeightOperands {
  static constexpr int x = 0, dy = 1, dweight = 2, dbias = 3;
};

}  // namespace trainer::kernels
