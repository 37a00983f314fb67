// layer_norm, rms_norm: over the last dim. Mean and reciprocal deviation are saved, in f32, a value a row. Fusion
// (engine/transform/fuse.h) gives them a `residual` that is added before the norm, or to the gradient; it comes after
// differentiation. With a frozen weight the gradient op gives only dx (`weight: false`).
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

Inference infer_norm(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  need_rank_least(inputs[0], 2);
  const Shape& shape = inputs[0].shape;
  const bool layer = given.has("bias");
  Inference inference;
  inference.attributes.set("eps", given.real("eps"));
  const bool offset = !layer && given.integer("offset") != 0;
  inference.parameters.push_back({"weight", {shape[-1]}, offset ? zeros_init() : ones_init()});
  if (offset) inference.attributes.set("offset", given.integer("offset"));
  if (!layer && given.text("cast") != "after") inference.attributes.set("cast", given.text("cast"));
  inference.outputs.push_back({compute, shape});
  if (layer) {
    inference.attributes.set("bias", given.flag("bias"));
    if (given.flag("bias")) inference.parameters.push_back({"bias", {shape[-1]}, zeros_init()});
    inference.outputs.push_back({DType::f32, {shape.rows()}});
    inference.saved_names.push_back("mean");
  }
  inference.outputs.push_back({DType::f32, {shape.rows()}});
  inference.saved_names.push_back("rstd");
  return inference;
}

std::vector<ValueId> gradient_norm(GradientBuilder& build, const Node& node, OutputGradients dy) {
  const Graph& graph = build.graph();
  const bool layer = node.op == Op::layer_norm;
  std::vector<ValueId> inputs{dy[0], node.inputs[0], node.inputs[1]};
  inputs.insert(inputs.end(), node.outputs.begin() + 1, node.outputs.end());
  const bool weight = build.needed(node.inputs[1]), bias = node.inputs.size() > 2 && build.needed(node.inputs[2]);
  std::vector<TensorDesc> outputs{input_desc(graph, node, 0)};
  std::vector<ValueId> parameters;
  if (weight) parameters.push_back(node.inputs[1]);
  if (weight && bias) parameters.push_back(node.inputs[2]);
  for (ValueId parameter : parameters) outputs.push_back({build.reduce_dtype(), graph.value(parameter).shape()});
  Attributes attributes;
  if (layer) attributes.set("bias", weight && bias);
  if (!weight) attributes.set("weight", false);
  if (!layer && integer(node, "offset") != 0) attributes.set("offset", integer(node, "offset"));
  const Op op = layer ? Op::layer_norm_grad : Op::rms_norm_grad;
  std::vector<ValueId> result(node.inputs.size(), kNone);
  if (bias && !weight) bias_gradient(build, node, dy[0], node.inputs[2], -1);
  if (!weight && !build.needed(node.inputs[0])) return result;
  result[0] = build.node_with_gradients(node, op, attributes, inputs, outputs, parameters)[0];
  return result;
}

/// By any dim but the last, which is what a row is.
Placed shard_norm(const Graph& graph, const Node& node, Placing in) {
  const Shape& shape = input_shape(graph, node, 0);
  const bool residual = flag(node, "residual");
  if (!in[0].is_shard() || in[0].dim == shape.rank() - 1 || (residual && in[1] != in[0])) return {};
  for (std::size_t i = residual ? 2 : 1; i < in.size(); ++i)
    if (!in[i].is_replicate()) return {};
  std::vector<Placement> outputs(node.outputs.size(), rows_of(shape, in[0]));
  outputs[0] = in[0];
  if (residual) outputs.back() = in[0];
  return outputs;
}

/// Inputs dy, x, weight, (mean), rstd, (residual); outputs dx and the parameters' gradients.
Placed shard_norm_grad(const Graph& graph, const Node& node, Placing in) {
  const Shape& shape = input_shape(graph, node, 0);
  if (!in[2].is_replicate()) return {};
  const bool partial = in[0].is_partial() && in[1].is_replicate();
  if (!partial && !(in[0].is_shard() && in[0].dim < shape.rank() - 1 && in[0] == in[1])) return {};
  const bool residual = flag(node, "residual");
  if (residual && in.back() != in[0]) return {};
  for (std::size_t i = 3; i < in.size() - (residual ? 1 : 0); ++i)
    if (in[i] != rows_of(shape, in[1])) return {};
  std::vector<Placement> outputs(node.outputs.size(), Placement::partial());
  outputs[0] = in[0];
  return outputs;
}

}  // namespace

OpDef layer_norm() {
  OpDef def{.op = Op::layer_norm};
  def.infer = infer_norm;
  def.gradient = gradient_norm;
  def.shard = shard_norm;
  return def;
}

OpDef layer_norm_grad() {
  OpDef def{.op = Op::layer_norm_grad};
  def.shard = shard_norm_grad;
  return def;
}

OpDef rms_norm() {
  OpDef def{.op = Op::rms_norm};
  def.infer = infer_norm;
  def.gradient = gradient_norm;
  def.shard = shard_norm;
  return def;
}

OpDef rms_norm_grad() { return {.op = Op::rms_norm_grad, .shard = shard_norm_grad}; }

}  // namespace trainer::define
