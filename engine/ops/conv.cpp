// conv2d: images [n, in, h, w] with weight [out, in, kh, kw], as in PyTorch; kernels are square.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

Inference infer_conv2d(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  need_rank(inputs[0], 4, "[n, channels, height, width]");
  const Shape& x = inputs[0].shape;
  const std::int64_t out = given.integer("out"), kernel = given.integer("kernel");
  Inference inference;
  inference.attributes = {
      {"stride", given.integer("stride")}, {"padding", given.integer("padding")}, {"bias", given.flag("bias")}};
  inference.parameters.push_back({"weight", {out, x[1], kernel, kernel}, matrix_init()});
  if (given.flag("bias")) inference.parameters.push_back({"bias", {out}, zeros_init()});
  inference.outputs.push_back({compute, {x[0], out, num_windows(x[2], given), num_windows(x[3], given)}});
  return inference;
}

std::vector<ValueId> gradient_conv2d(GradientBuilder& build, const Node& node, OutputGradients dy) {
  product_gradients(build, node, Op::conv2d_grad_weight, node.attributes, dy[0], 1);
  std::vector<ValueId> result(node.inputs.size(), kNone);
  if (!build.needed(node.inputs[0])) return result;
  const Attributes attributes{{"stride", integer(node, "stride")}, {"padding", integer(node, "padding")}};
  result[0] = build.node(node, Op::conv2d_grad_input, attributes, {dy[0], node.inputs[1]},
                         {input_desc(build.graph(), node, 0)})[0];
  return result;
}

Placed shard_conv2d(const Graph&, const Node& node, Placing in) {
  const bool bias = in.size() > 2;
  if (in[0].is_shard(0) && in[1].is_replicate() && (!bias || in[2].is_replicate())) return all(node, in[0]);
  if (in[0].is_replicate() && in[1].is_shard(0) && (!bias || in[2] == in[1]))
    return all(node, Placement::shard(1, in[1].parts));
  return {};
}

Placed shard_grad_input(const Graph&, const Node& node, Placing in) {
  if (in[1].is_replicate() && (in[0].is_shard(0) || in[0].is_partial())) return all(node, in[0]);
  if (in[0].is_shard(1) && in[1].is_shard(0) && in[0].parts == in[1].parts) return all(node, Placement::partial());
  return {};
}

Placed shard_grad_weight(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard(0) && in[1] == in[0]) return all(node, Placement::partial());
  if (in[0].is_replicate() && in[1].is_shard(1)) return all(node, Placement::shard(0, in[1].parts));
  if (in[0].is_replicate() && in[1].is_partial()) return all(node, in[1]);
  return {};
}

/// Each value of y [n, out, oh, ow] takes a multiply-add for every value of its filter of `weight`.
double flops(const TensorDesc& y, const TensorDesc& weight) {
  return 2.0 * static_cast<double>(y.elements()) * static_cast<double>(weight.elements() / weight.shape[0]);
}

}  // namespace

OpDef conv2d() {
  OpDef def{.op = Op::conv2d};
  def.infer = infer_conv2d;
  def.gradient = gradient_conv2d;
  def.shard = shard_conv2d;
  def.flops = [](const Signature& s) { return flops(s.operands.back(), s.operands[1]); };
  return def;
}

OpDef conv2d_grad_input() {
  OpDef def{.op = Op::conv2d_grad_input};
  def.shard = shard_grad_input;
  def.flops = [](const Signature& s) { return flops(s.operands[0], s.operands[1]); };
  return def;
}

OpDef conv2d_grad_weight() {
  OpDef def{.op = Op::conv2d_grad_weight};
  def.shard = shard_grad_weight;
  def.flops = [](const Signature& s) { return flops(s.operands[1], s.operands[2]); };
  return def;
}

}  // namespace trainer::define
