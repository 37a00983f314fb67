// The ops of a step around the graph but for the optimizers (optimizer.cpp): no model names them, and only `cast` stands in graphs.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

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

}  // namespace

OpDef zero() { return {.op = Op::zero, .min_inputs = 0, .max_inputs = 0, .cost = moves(1)}; }

OpDef cast() {
  OpDef def{.op = Op::cast, .cost = moves(1)};
  def.shard = [](const Graph&, const Node& node, Placing in) -> Placed {
    if (in[0].is_shard()) return all(node, in[0]);
    return {};
  };
  def.gradient = [](GradientBuilder& build, const Node& node, OutputGradients dy) -> std::vector<ValueId> {
    if (!build.needed(node.inputs[0])) return {kNone};
    return build.node(node, Op::cast, {}, {dy[0]}, {input_desc(build.graph(), node, 0)});
  };
  return def;
}

OpDef pack_weight() { return {.op = Op::pack_weight, .cost = moves(1)}; }
OpDef loss_seed() { return {.op = Op::loss_seed, .min_inputs = 2, .max_inputs = 2, .cost = moves(1)}; }
OpDef sum_squares() { return {.op = Op::sum_squares, .cost = moves(1)}; }
OpDef update_scalars() { return {.op = Op::update_scalars, .min_inputs = 5, .max_inputs = 6, .cost = moves(0)}; }

OpDef outer_step() { return flat_update(Op::outer_step, 4, 1); }
OpDef apply_delayed() { return flat_update(Op::apply_delayed, 3, 0); }

}  // namespace trainer::define
