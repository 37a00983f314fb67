// linear: y = x·Wᵀ + b, and its gradients dx = dy·W, dW = dyᵀ·x, db = sum of dy over rows. Sums are f32; the order of
// their additions depends on shapes alone.
//
// `c` is the compute dtype (f32, bf16 or f16), `r` the dtype of parameter gradients (f32 or bf16); [...] are leading
// dims, seen as rows. No operand may overlap another.
//
// linear               x c [..., in], weight c [out, in], bias c [out] if `bias`,
//                      residual c [..., out] if `residual`
//                      → y c [..., out], pre c [..., out] if `pre`. With `partial`, for ranks whose outputs are summed
//                      afterwards, the bias is added only where Call::origin is 0
// linear_grad_input    dy c [..., out], weight c [out, in], pre c [..., in] if `gelu`,
//                      residual c [..., in] if `residual`
//                      → dx c [..., in]
// linear_grad_weight   x c [..., in], dy c [..., out]
//                      → dweight r [out, in], dbias r [out] if `bias`; `accumulate` adds to both
//
// `gelu` (false where absent) is an epilogue: the activation after the product, in the product's own pass over its
// output. It is the approximation with tanh that the op `gelu` has under approximate: "tanh". Graph files have no such
// attribute; engine/transform/fuse.h sets it where Target::fuses_gelu says that the device's kernels take it: today
// bf16 and f16 on GPUs. The CPU's kernels refuse it.
//   linear             y = gelu(x·Wᵀ + b), and pre = x·Wᵀ + b, rounded to c, if `pre` (training needs it, evaluation
//                      does not).
//                      `pre` is never set without `gelu`, nor `partial` with it.
//   linear_grad_input  dx = (dy·W) ⊙ gelu'(pre): the gradient with respect to the activation's input. `pre` is that of
//                      the linear before;
//                      in [..., in], its rows have the length of dx's.
// The activation may see the f32 sum or the sum rounded to c. Any shape is accepted: where a library's epilogue needs
// more (rows of `pre` in multiples of 8 elements, say), the kernel computes the activation in a pass of its own after
// the product, within the same launch and workspace.
//
// `fp8` (none where absent; engine/core/fp8.h says which scales there are) multiplies codes of eight bits: x, weight
// and in the gradients weight and x are of e4m3, dy of e5m2, quantized in the launch. Operands are bf16, rows, in and
// out multiples of 16, with block_32 of 32. The bias, its gradient and the activation are of the values themselves. The
// CPU's kernels refuse it.
//
// `residual` (false where absent) is an epilogue too: y = x·Wᵀ + b + residual, dx = dy·W + residual, each sum in f32
// before it is rounded to c. engine/transform/fuse.h sets it where Target::fuses_residual says so, that is on CPUs. It
// is never set with `gelu`. The CUDA kernels refuse it.
#pragma once

namespace trainer::kernels {

// Where operands stand in signatures and calls.
struct LinearOperands {
  static constexpr int x = 0, weight = 1, bias = 2;
  static constexpr int residual(bool has_bias) { return has_bias ? 3 : 2; }  ///< if `residual`
  static constexpr int y(bool has_bias, bool has_residual = false) {
    return residual(has_bias) + (has_residual ? 1 : 0);
  }
  static constexpr int pre(bool has_bias) { return y(has_bias) + 1; }  ///< if `pre`
};
struct LinearGradInputOperands {
  static constexpr int dy = 0, weight = 1, pre = 2;  ///< pre: if `gelu`
  static constexpr int residual = 2;                 ///< if `residual`
  static constexpr int dx(bool epilogue) { return epilogue ? 3 : 2; }
};
struct LinearGradWeightOperands {
  static constexpr int x = 0, dy = 1, dweight = 2, dbias = 3;
};

}  // namespace trainer::kernels
