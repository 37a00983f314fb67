// The loss of direct preference optimization, its gradient, and what it counts: pairs. Source: Rafailov et al., "Direct
// Preference Optimization: Your Language Model is Secretly a Reward Model", 2023, equation 7. The reference has no
// gradient. kernels/preference.h says what the operands mean.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

std::vector<ValueId> gradient_dpo_loss(GradientBuilder& build, const Node& node, OutputGradients seed) {
  const ValueId policy = node.inputs[0];
  if (!build.needed(policy)) return {kNone, kNone, kNone};
  const TensorDesc dpolicy{DType::f32, input_shape(build.graph(), node, 0)};
  return {build.node(node, Op::dpo_loss_grad, node.attributes, {policy, node.inputs[1], node.inputs[2], seed[0]},
                     {dpolicy})[0],
          kNone, kNone};
}

/// Both sequences of a pair are on one rank.
bool cut_by_pairs(Placing in) { return in[0] == Placement::shard(0) && in[1] == in[0] && in[2] == in[0]; }

Placed shard_dpo_loss(const Graph&, const Node& node, Placing in) {
  if (cut_by_pairs(in)) return all(node, Placement::partial());
  return {};
}

Placed shard_dpo_loss_grad(const Graph&, const Node& node, Placing in) {
  if (cut_by_pairs(in) && in[3].is_replicate()) return all(node, in[0]);
  return {};
}

Placed shard_dpo_count(const Graph&, const Node& node, Placing in) {
  if (in[0] == Placement::shard(0)) return all(node, Placement::partial());
  return {};
}

}  // namespace

OpDef dpo_loss() {
  OpDef def{.op = Op::dpo_loss};
  def.gradient = gradient_dpo_loss;
  def.shard = shard_dpo_loss;
  def.loss = LossDef{Op::dpo_count, {"ignore_index"}};
  return def;
}

OpDef dpo_loss_grad() { return {.op = Op::dpo_loss_grad, .shard = shard_dpo_loss_grad}; }

OpDef dpo_count() { return {.op = Op::dpo_count, .shard = shard_dpo_count}; }

}  // namespace trainer::define
