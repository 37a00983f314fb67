// mean: the average over one dim, which it removes: over a sequence [batch, seq, dim], or with flattened pixels
// [n, channels, h · w] the global average pool.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

Inference infer_mean(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  need_rank_least(inputs[0], 2);
  const Shape& x = inputs[0].shape;
  Inference inference{.attributes = dim_attribute(given, x.rank()), .parameters = {}, .outputs = {}, .saved_names = {}};
  const int dim = x.rank() + static_cast<int>(integer_of(Op::mean, inference.attributes, "dim"));
  std::vector<std::int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes.erase(sizes.begin() + dim);
  inference.outputs = {{compute, Shape(sizes)}};
  return inference;
}

std::vector<ValueId> gradient_mean(GradientBuilder& build, const Node& node, OutputGradients dy) {
  if (!build.needed(node.inputs[0])) return {kNone};
  return build.node(node, Op::mean_grad, node.attributes, {dy[0]}, {input_desc(build.graph(), node, 0)});
}

/// Each of the other dims, which the output has one place before where it stands behind the dim; and sums.
Placed shard_mean(const Graph& graph, const Node& node, Placing in) {
  if (!in[0].is_shard()) return all(node, in[0]);
  const int dim = dim_of(graph, node, node.inputs[0]);
  if (in[0].dim == Placement::kRows || in[0].dim == dim) return {};
  return all(node, in[0].dim < dim ? in[0] : in[0].moved_to(in[0].dim - 1));
}

Placed shard_mean_grad(const Graph& graph, const Node& node, Placing in) {
  if (!in[0].is_shard()) return all(node, in[0]);
  if (in[0].dim == Placement::kRows) return {};
  return all(node, in[0].dim < dim_of(graph, node, node.outputs[0]) ? in[0] : in[0].moved_to(in[0].dim + 1));
}

}  // namespace

OpDef mean() {
  OpDef def{.op = Op::mean};
  def.infer = infer_mean;
  def.gradient = gradient_mean;
  def.shard = shard_mean;
  return def;
}

OpDef mean_grad() { return {.op = Op::mean_grad, .shard = shard_mean_grad}; }

}  // namespace trainer::define
