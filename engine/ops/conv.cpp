// conv2d: images [n, in, h, w] with weight [out, in, kh, kw], as in PyTorch; kernels are square. conv1d: sequences
// [n, in, l] with weight [out, in, k].
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

/// The ops of a convolution over so many dims.
struct Convolution {
  Op forward, grad_input, grad_weight;
  int dims;
  const char* input;
};
constexpr Convolution kConv2d{Op::conv2d, Op::conv2d_grad_input, Op::conv2d_grad_weight, 2,
                              "[n, channels, height, width]"};
constexpr Convolution kConv1d{Op::conv1d, Op::conv1d_grad_input, Op::conv1d_grad_weight, 1, "[n, channels, length]"};

Inference infer_conv(const Convolution& c, const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  need_rank(inputs[0], 2 + c.dims, c.input);
  const Shape& x = inputs[0].shape;
  const std::int64_t out = given.integer("out"), kernel = given.integer("kernel");
  Shape weight = x, y = x;
  weight[0] = out, weight[1] = x[1], y[1] = out;
  for (int dim = 2; dim < x.rank(); ++dim) weight[dim] = kernel, y[dim] = num_windows(x[dim], given);
  Inference inference;
  inference.attributes = {
      {"stride", given.integer("stride")}, {"padding", given.integer("padding")}, {"bias", given.flag("bias")}};
  inference.parameters.push_back({"weight", weight, matrix_init()});
  if (given.flag("bias")) inference.parameters.push_back({"bias", {out}, zeros_init()});
  inference.outputs.push_back({compute, y});
  return inference;
}

std::vector<ValueId> gradient_conv(const Convolution& c, GradientBuilder& build, const Node& node, OutputGradients dy) {
  product_gradients(build, node, c.grad_weight, node.attributes, dy[0], 1);
  std::vector<ValueId> result(node.inputs.size(), kNone);
  if (!build.needed(node.inputs[0])) return result;
  const Attributes attributes{{"stride", integer(node, "stride")}, {"padding", integer(node, "padding")}};
  result[0] =
      build.node(node, c.grad_input, attributes, {dy[0], node.inputs[1]}, {input_desc(build.graph(), node, 0)})[0];
  return result;
}

Placed shard_conv(const Graph&, const Node& node, Placing in) {
  const bool bias = in.size() > 2;
  if (in[0].is_shard(0) && in[1].is_replicate() && (!bias || in[2].is_replicate())) return all(node, in[0]);
  if (in[0].is_replicate() && in[1].is_shard(0) && (!bias || in[2] == in[1]))
    return all(node, Placement::shard(1, in[1].parts));
  return {};
}

Placed shard_conv_grad_input(const Graph&, const Node& node, Placing in) {
  if (in[1].is_replicate() && (in[0].is_shard(0) || in[0].is_partial())) return all(node, in[0]);
  if (in[0].is_shard(1) && in[1].is_shard(0) && in[0].parts == in[1].parts) return all(node, Placement::partial());
  return {};
}

Placed shard_conv_grad_weight(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard(0) && in[1] == in[0]) return all(node, Placement::partial());
  if (in[0].is_replicate() && in[1].is_shard(1)) return all(node, Placement::shard(0, in[1].parts));
  if (in[0].is_replicate() && in[1].is_partial()) return all(node, in[1]);
  return {};
}

/// Each value of y [n, out, …] takes a multiply-add for every value of its filter of `weight`.
double flops(const TensorDesc& y, const TensorDesc& weight) {
  return 2.0 * static_cast<double>(y.elements()) * static_cast<double>(weight.elements() / weight.shape[0]);
}

OpDef forward(const Convolution& c) {
  OpDef def{.op = c.forward};
  def.infer = [&c](const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
    return infer_conv(c, given, inputs, compute);
  };
  def.gradient = [&c](GradientBuilder& build, const Node& node, OutputGradients dy) {
    return gradient_conv(c, build, node, dy);
  };
  def.shard = shard_conv;
  def.flops = [](const Signature& s) { return flops(s.operands.back(), s.operands[1]); };
  return def;
}

OpDef grad_input(const Convolution& c) {
  OpDef def{.op = c.grad_input};
  def.shard = shard_conv_grad_input;
  def.flops = [](const Signature& s) { return flops(s.operands[0], s.operands[1]); };
  return def;
}

OpDef grad_weight(const Convolution& c) {
  OpDef def{.op = c.grad_weight};
  def.shard = shard_conv_grad_weight;
  def.flops = [](const Signature& s) { return flops(s.operands[1], s.operands[2]); };
  return def;
}

}  // namespace

OpDef conv2d() { return forward(kConv2d); }
OpDef conv2d_grad_input() { return grad_input(kConv2d); }
OpDef conv2d_grad_weight() { return grad_weight(kConv2d); }
OpDef conv1d() { return forward(kConv1d); }
OpDef conv1d_grad_input() { return grad_input(kConv1d); }
OpDef conv1d_grad_weight() { return grad_weight(kConv1d); }

}  // namespace trainer::define
