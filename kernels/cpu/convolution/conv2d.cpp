// conv2d, conv1d and their gradients on the CPU: by oneDNN, or where planes are small as products over unfolded images,
// or where they are large and windows one place as products of samples as they lie.
// oneDNN multiplies bf16 as such only where there are AMX tiles; elsewhere its products are made in f32, which is
// faster (vdpbf16ps has half the FLOPs of f32 FMAs on Intel's) and works everywhere.
#include "kernels/conv2d.h"

#include "engine/core/op_record.h"
#include "kernels/cpu/convolution/onednn.h"
#include "kernels/cpu/convolution/pointwise.h"
#include "kernels/cpu/convolution/unfolded.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"

namespace trainer::kernels::cpu {
namespace {

const TensorDesc& desc(const Signature& s, int index) { return s.operands[static_cast<std::size_t>(index)]; }

Convolution convolution_of(const Signature& s, const Shape& given_x, const Shape& given_weight, const Shape& given_y,
                           const Context& c) {
  const Shape x = as_images(given_x), weight = as_images(given_weight), y = as_images(given_y);
  Convolution v;
  v.n = x[0], v.in = x[1], v.h = x[2], v.w = x[3];
  v.out = weight[0], v.kh = weight[2], v.kw = weight[3], v.oh = y[2], v.ow = y[3];
  v.stride = integer(s, "stride"), v.padding = integer(s, "padding");
  v.padding_rows = padding_rows(given_x, v.padding);
  CHECK(v.oh == (v.h + 2 * v.padding_rows - v.kh) / v.stride + 1 && v.ow == (v.w + 2 * v.padding - v.kw) / v.stride + 1,
        describe(s) + ": the output's size does not follow from kernel, stride and padding");
  v.dtype = expect_compute_dtype(s, 0) ? DType::bf16 : DType::f32;
  v.isa = c.isa;
  return v;
}

Convolution forward_of(const Signature& s, const Context& c) {
  using At = Conv2dOperands;
  const bool bias = flag(s, "bias");
  expect_operands(s, static_cast<std::size_t>(At::y(bias)) + 1);
  Convolution v = convolution_of(s, desc(s, At::x).shape, desc(s, At::weight).shape, desc(s, At::y(bias)).shape, c);
  v.bias = bias;
  return v;
}

Convolution grad_input_of(const Signature& s, const Context& c) {
  using At = Conv2dGradInputOperands;
  expect_operands(s, At::dx + 1);
  return convolution_of(s, desc(s, At::dx).shape, desc(s, At::weight).shape, desc(s, At::dy).shape, c);
}

Convolution grad_weight_of(const Signature& s, const Context& c) {
  using At = Conv2dGradWeightOperands;
  const bool bias = flag(s, "bias");
  expect_operands(s, static_cast<std::size_t>(bias ? At::dbias : At::dweight) + 1);
  Convolution v = convolution_of(s, desc(s, At::x).shape, desc(s, At::dweight).shape, desc(s, At::dy).shape, c);
  v.bias = bias;
  v.accumulate = accumulates(s);
  v.parameter_gradients = expect_compute_dtype(s, At::dweight) ? DType::bf16 : DType::f32;
  return v;
}

std::int64_t workspace_of(const Convolution& v, Pass pass, const Context& c) {
  if (unfolded::is_faster(v, pass)) return unfolded::workspace_bytes(v, pass, c.threads);
  if (pointwise::is_faster(v)) return pointwise::workspace_bytes(v, pass, c.threads);
  return onednn::workspace_bytes(v, pass, c.threads);
}

Prepared kernel_of(const Convolution& v, Pass pass, const Context& c) {
  if (unfolded::is_faster(v, pass))
    return make_kernel([product = unfolded::Product(v, pass, c.threads)](const Call& call) {
      product.run(call.operands, call.workspace);
    });
  if (pointwise::is_faster(v))
    return make_kernel([v, pass, threads = c.threads](const Call& call) {
      pointwise::run(v, pass, threads, call.operands, call.workspace);
    });
  return make_kernel([sequence = std::shared_ptr(onednn::prepare(v, pass, c.threads))](const Call& call) {
    sequence->run(call.operands, call.workspace);
  });
}

}  // namespace

Prepared prepare_conv2d(const Signature& s, const Context& c) { return kernel_of(forward_of(s, c), Pass::forward, c); }
Prepared prepare_conv2d_grad_input(const Signature& s, const Context& c) {
  return kernel_of(grad_input_of(s, c), Pass::grad_input, c);
}
Prepared prepare_conv2d_grad_weight(const Signature& s, const Context& c) {
  return kernel_of(grad_weight_of(s, c), Pass::grad_weight, c);
}

std::int64_t conv2d_workspace(const Signature& s, const Context& c) {
  switch (s.op) {
    case Op::conv2d:
    case Op::conv1d:
      return workspace_of(forward_of(s, c), Pass::forward, c);
    case Op::conv2d_grad_input:
    case Op::conv1d_grad_input:
      return workspace_of(grad_input_of(s, c), Pass::grad_input, c);
    case Op::conv2d_grad_weight:
    case Op::conv1d_grad_weight:
      return workspace_of(grad_weight_of(s, c), Pass::grad_weight, c);
    default:
      UNREACHABLE(describe(s) + " is no convolution");
  }
}

}  // namespace trainer::kernels::cpu
