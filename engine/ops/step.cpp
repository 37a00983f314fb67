// The ops of a step around the graph, without the optimizers (optimizer.cpp): no model names them, and only `cast`
// stands in graphs.
#include "engine/ops/common.h"

namespace trainer::define {
OpDef zero() { return {.op = Op::zero}; }

OpDef cast() {
  OpDef def{.op = Op::cast};
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

OpDef loss_seed() { return {.op = Op::loss_seed}; }
OpDef sum_squares() { return {.op = Op::sum_squares}; }
OpDef update_scalars() { return {.op = Op::update_scalars}; }

OpDef outer_gradient() { return {.op = Op::outer_gradient}; }
OpDef outer_step() { return {.op = Op::outer_step}; }
OpDef apply_delayed() { return {.op = Op::apply_delayed}; }

}  // namespace trainer::define
