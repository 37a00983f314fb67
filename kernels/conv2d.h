// conv2d: cross-correlation of images with filters, as PyTorch's conv2d (no dilation, no groups), and its gradients.
//
//   y[n, o, i, j] = bias[o] + Σ over c, a, b of
//                   weight[o, c, a, b] · x[n, c, i·stride + a − padding, j·stride + b − padding]
//
// where x is 0 outside of its image; oh = (h + 2·padding − kh) / stride + 1, rounded down, and ow likewise. All
// tensors are NCHW or OIHW. `c` is the compute dtype (f32 or bf16), `r` the dtype of parameter gradients (f32 or bf16).
// Sums are f32. No operand may overlap another.
//
// conv2d               x c [n, in, h, w], weight c [out, in, kh, kw], bias c [out] if `bias` → y c [n, out, oh, ow]
// conv2d_grad_input    dy c [n, out, oh, ow], weight c → dx c [n, in, h, w]
// conv2d_grad_weight   x c, dy c → dweight r [out, in, kh, kw], dbias r [out] if `bias`; `accumulate` adds to both
//
// Attributes: stride, padding (integers, the same both ways); bias; accumulate.
//
// conv1d and its gradients do the same for sequences [n, in, l] and filters [out, in, k]: images of one row, without
// padding above and below.
#pragma once

#include "engine/core/signature.h"

namespace trainer::kernels {

/// The images or filters of a convolution, as conv2d has them.
inline Shape as_images(const Shape& shape) {
  return shape.rank() == 3 ? Shape{shape[0], shape[1], 1, shape[2]} : shape;
}
/// Rows of zeros above and below, of the attribute `padding`.
inline std::int64_t padding_rows(const Shape& shape, std::int64_t padding) { return shape.rank() == 3 ? 0 : padding; }

// Where operands stand in signatures and calls.
struct Conv2dOperands {
  static constexpr int x = 0, weight = 1, bias = 2;
  static constexpr int y(bool has_bias) { return has_bias ? 3 : 2; }
};
struct Conv2dGradInputOperands {
  static constexpr int dy = 0, weight = 1, dx = 2;
};
struct Conv2dGradWeightOperands {
  static constexpr int x = 0, dy = 1, dweight = 2, dbias = 3;
};

}  // namespace trainer::kernels
