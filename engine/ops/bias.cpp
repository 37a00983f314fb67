// bias_grad: the gradient of a bias by itself, where the weight beside it is frozen: dy is summed over all dims but the
// bias's own. Where both are trained the gradient of the weight makes it, as it reads dy anyway.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

/// dy cut in another dim than the bias's, or a partial sum, gives partial sums; cut in that dim, pieces of the bias's
/// gradient.
Placed shard_bias_grad(const Graph& graph, const Node& node, Placing in) {
  const int rank = input_shape(graph, node, 0).rank();
  const auto given = static_cast<int>(integer(node, "dim"));
  const int dim = given < 0 ? given + rank : given;
  if (in[0].is_shard(dim)) return all(node, in[0].moved_to(0));
  if (in[0].is_shard(Placement::kRows) && dim != rank - 1) return {};
  return all(node, Placement::partial());
}

}  // namespace

void bias_gradient(GradientBuilder& build, const Node& node, ValueId dy, ValueId bias, int dim) {
  const TensorDesc gradient{build.reduce_dtype(), build.graph().value(bias).shape()};
  build.node_with_gradients(node, Op::bias_grad, {{"dim", std::int64_t{dim}}}, {dy}, {gradient}, {bias});
}

void product_gradients(GradientBuilder& build, const Node& node, Op op, Attributes attributes, ValueId dy, int dim) {
  const bool weight = build.needed(node.inputs[1]), bias = flag(node, "bias") && build.needed(node.inputs[2]);
  if (bias && !weight) return bias_gradient(build, node, dy, node.inputs[2], dim);
  if (!weight) return;
  std::vector<TensorDesc> gradients;
  const std::vector<ValueId> parameters(node.inputs.begin() + 1, node.inputs.begin() + (bias ? 3 : 2));
  for (ValueId parameter : parameters)
    gradients.push_back({build.reduce_dtype(), build.graph().value(parameter).shape()});
  attributes.set("bias", bias);
  build.node_with_gradients(node, op, std::move(attributes), {node.inputs[0], dy}, gradients, parameters);
}

OpDef bias_grad() { return {.op = Op::bias_grad, .shard = shard_bias_grad}; }

}  // namespace trainer::define
