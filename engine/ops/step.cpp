// The ops of a step around the graph: no model names them, and only `cast` stands in graphs.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

/// Master weights and states are read and written, the gradient read, the working copy written.
Cost cost_optimizer(const Signature& signature, int num_states) {
  const bool working = signature.attributes.flag("working", false);
  Cost cost = moved(signature, working ? 1 : 0);
  cost.bytes_written += static_cast<double>(signature.operands[0].bytes());
  for (int i = 0; i < num_states; ++i)
    cost.bytes_written += static_cast<double>(signature.operands[static_cast<std::size_t>(2 + i)].bytes());
  return cost;
}

/// Of flat operands of one size: the first is read and written (of outer_step the second too), the last `num_outputs` written.
OpDef flat_update(Op op, int num_operands, int num_outputs) {
  OpDef def{.op = op, .min_inputs = num_operands - num_outputs, .max_inputs = num_operands - num_outputs};
  def.cost = [num_outputs](const Signature& signature) {
    Cost cost = moved(signature, num_outputs);
    cost.bytes_written += static_cast<double>((1 + num_outputs) * signature.operands[0].bytes());
    return cost;
  };
  return def;
}

OpDef optimizer(Op op, int num_states) {
  OpDef def{.op = op};
  def.cost = [num_states](const Signature& signature) { return cost_optimizer(signature, num_states); };
  return def;
}

}  // namespace

OpDef zero() { return {.op = Op::zero, .min_inputs = 0, .max_inputs = 0, .cost = moves(1)}; }

OpDef cast() {
  OpDef def{.op = Op::cast, .cost = moves(1)};
  def.shard = [](const Graph&, const Node& node, Placing in) -> Placed {
    if (in[0].is_shard()) return all(node, in[0]);
    return {};
  };
  def.gradient = [](GradientBuilder& build, const Node& node, ValueId dy) -> std::vector<ValueId> {
    if (!build.needed(node.inputs[0])) return {kNone};
    return build.node(node, Op::cast, {}, {dy}, {input_desc(build.graph(), node, 0)});
  };
  return def;
}

OpDef pack_weight() { return {.op = Op::pack_weight, .cost = moves(1)}; }
OpDef loss_seed() { return {.op = Op::loss_seed, .min_inputs = 2, .max_inputs = 2, .cost = moves(1)}; }
OpDef sum_squares() { return {.op = Op::sum_squares, .cost = moves(1)}; }
OpDef update_scalars() { return {.op = Op::update_scalars, .min_inputs = 5, .max_inputs = 6, .cost = moves(0)}; }

OpDef sgd() {
  OpDef def{.op = Op::sgd};
  def.cost = [](const Signature& signature) { return cost_optimizer(signature, signature.attributes.flag("has_momentum", false) ? 1 : 0); };
  return def;
}

OpDef adam() { return optimizer(Op::adam, 2); }
OpDef adamw() { return optimizer(Op::adamw, 2); }
OpDef lion() { return optimizer(Op::lion, 1); }

OpDef outer_step() { return flat_update(Op::outer_step, 4, 1); }
OpDef apply_delayed() { return flat_update(Op::apply_delayed, 3, 0); }

}  // namespace trainer::define
