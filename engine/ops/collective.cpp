// Collectives of a graph, over the ranks that differ along Node::axes. No kernel runs: the plan makes collectives of
// these nodes (none of `replicate`), and their gradients are their conjugates, so that differentiation knows nothing of
// ranks:
//
//   replicate        x → the same memory                          dx = all_reduce(dy)
//   all_reduce       x → Σ over the ranks, in place               dx = dy
//   all_gather       my part of dim `dim` → the whole             dx = reduce_scatter(dy)
//   reduce_scatter   x → my part of dim `dim` of the sum          dx = all_gather(dy)
//   all_to_all       [1, n, …], my slices of dim 0 → [n, 1, …], those of dim 1, for `dim` 1; for 0 the way back
//                                                                 dx = all_to_all(dy), the other way
//   shift            x → what the rank before me has              none: made behind differentiation (transform/ring.h)
//
// These are f and g of Shoeybi et al., "Megatron-LM", 2019, section 3, and g and its conjugate of Korthikanti et al.,
// "Reducing Activation Recomputation in Large Transformer Models", 2022, section 4.2.2. Graph files cannot name them;
// engine/transform/distribute.h inserts them.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

/// The gradient by one node of `op` on dy, which gives what the input is like.
auto gradient_by(Op op) {
  return [op](GradientBuilder& build, const Node& node, OutputGradients dy) {
    if (!build.needed(node.inputs[0])) return std::vector<ValueId>{kNone};
    return build.node(node, op, node.attributes, {dy[0]}, {input_desc(build.graph(), node, 0)});
  };
}

/// Along the other axes the ranks of a group hold the same piece, and what is done to the whole is done to the pieces.
Placed shard_elements(const Graph&, const Node& node, Placing in) { return all(node, in[0]); }

}  // namespace

OpDef replicate() {
  OpDef def{.op = Op::replicate, .gradient = gradient_by(Op::all_reduce), .shard = shard_elements};
  def.cost = [](const Signature&) { return Cost{}; };
  return def;
}

OpDef all_reduce() {
  OpDef def{.op = Op::all_reduce, .shard = shard_elements};
  def.gradient = [](GradientBuilder&, const Node&, OutputGradients dy) { return std::vector<ValueId>{dy[0]}; };
  return def;
}

OpDef all_gather() {
  return {.op = Op::all_gather, .gradient = gradient_by(Op::reduce_scatter), .shard = shard_elements};
}

OpDef reduce_scatter() {
  return {.op = Op::reduce_scatter, .gradient = gradient_by(Op::all_gather), .shard = shard_elements};
}

OpDef all_to_all() {
  OpDef def{.op = Op::all_to_all, .shard = shard_elements};
  def.gradient = [](GradientBuilder& build, const Node& node, OutputGradients dy) {
    if (!build.needed(node.inputs[0])) return std::vector<ValueId>{kNone};
    const Attributes back{{"dim", 1 - integer(node, "dim")}};
    return build.node(node, Op::all_to_all, back, {dy[0]}, {input_desc(build.graph(), node, 0)});
  };
  return def;
}

OpDef shift() { return {.op = Op::shift, .shard = shard_elements}; }

}  // namespace trainer::define
