// max_pool2d, avg_pool2d: over square windows of [n, channels, h, w]. The gradient of the maximum reads the places it
// was at.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

Attributes window(const Attributes& given) {
  const std::int64_t kernel = given.integer("kernel"), stride = given.has("stride") ? given.integer("stride") : kernel,
                     padding = given.integer("padding");
  if (2 * padding > kernel) mistake("padding may be at most half of the kernel", "padding");
  return {{"kernel", kernel}, {"stride", stride}, {"padding", padding}};
}

Inference infer_pool(const Attributes& given, std::span<const TensorDesc> inputs, DType compute, bool index) {
  need_values(inputs[0], compute);
  need_rank(inputs[0], 4, "[n, channels, height, width]");
  Inference inference;
  inference.attributes = window(given);
  Shape y = inputs[0].shape;
  for (int dim : {2, 3}) y[dim] = num_windows(y[dim], inference.attributes);
  inference.outputs.push_back({compute, y});
  if (!index) return inference;
  inference.outputs.push_back({DType::i32, y});
  inference.saved_names.push_back("index");
  return inference;
}

/// Each image and channel is pooled separately.
Placed shard_pool(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard() && in[0].dim < 2) return all(node, in[0]);
  return {};
}

Placed shard_pool_grad(const Graph&, const Node& node, Placing in) {
  const bool index = in.size() > 1;
  if (in[0].is_shard() && in[0].dim < 2 && (!index || in[1] == in[0])) return all(node, in[0]);
  if (in[0].is_partial() && (!index || in[1].is_replicate())) return all(node, in[0]);
  return {};
}

OpDef pool(Op op, Op grad, bool index) {
  OpDef def{.op = op};
  def.infer = [index](const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
    return infer_pool(given, inputs, compute, index);
  };
  def.gradient = [grad, index](GradientBuilder& build, const Node& node, OutputGradients dy) {
    std::vector<ValueId> inputs{dy[0]};
    if (index) inputs.push_back(node.outputs[1]);
    return build.node(node, grad, node.attributes, inputs, {input_desc(build.graph(), node, 0)});
  };
  def.shard = shard_pool;
  return def;
}

}  // namespace

OpDef max_pool2d() { return pool(Op::max_pool2d, Op::max_pool2d_grad, true); }
OpDef avg_pool2d() { return pool(Op::avg_pool2d, Op::avg_pool2d_grad, false); }

OpDef max_pool2d_grad() { return {.op = Op::max_pool2d_grad, .shard = shard_pool_grad}; }
OpDef avg_pool2d_grad() { return {.op = Op::avg_pool2d_grad, .shard = shard_pool_grad}; }

}  // namespace trainer::define
