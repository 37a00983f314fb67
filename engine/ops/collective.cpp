// What a node of a rank's graph does over the tensor axis. No kernel runs: the plan makes collectives of these nodes (none of
// `replicate`), and their gradients are their conjugates, so that differentiation knows nothing of ranks:
//
//   replicate        x → the same memory                     dx = all_reduce(dy)
//   all_reduce       x → Σ over the ranks, in place          dx = dy
//   all_gather       x [T/n, ...] → [T, ...]                 dx = reduce_scatter(dy)
//   reduce_scatter   x [T, ...] → my T/n rows of the sum     dx = all_gather(dy)
//
// Attribute `parts` of the last two is n. Rows lie by rank: rank i has, or gets, slice i of the memory. Their shapes may fold
// dims differently ([batch · seq / n, dim] and [batch, seq, dim]): bytes in order are all that counts. These are f and g of
// Shoeybi et al., "Megatron-LM", 2019, section 3, and g and its conjugate of Korthikanti et al., "Reducing Activation
// Recomputation in Large Transformer Models", 2022, section 4.2.2. Graph files cannot name them; tensor strategies insert them.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

/// One node of `op` on dy, which gives what the input is like.
std::vector<ValueId> conjugate(GradientBuilder& build, const Node& node, Op op, ValueId dy) {
  if (!build.needed(node.inputs[0])) return {kNone};
  return {build.node(node, op, node.attributes, {dy}, {input_desc(build.graph(), node, 0)})[0]};
}

/// Along the other axes the ranks of a tensor group hold the same piece, and what is done to the whole is done to the pieces.
Placed shard_elements(const Graph&, const Node& node, Placing in) { return all(node, in[0]); }

/// Whether `stack` is [n, one...].
bool stacks(const Shape& one, const Shape& stack) { return stack.rank() == one.rank() + 1 && Shape(stack.sizes().subspan(1)) == one; }

/// Rows of a piece of the rows; not of the columns, which folded dims may not have. Stacked pieces keep their dims behind the new one.
Placed shard_rows(const Graph& graph, const Node& node, Placing in) {
  const Shape &x = input_shape(graph, node, 0), &y = graph.value(node.outputs[0]).shape;
  const Placement cut = in[0];
  if (cut.is_partial()) return all(node, cut);
  if (stacks(x, y)) return all(node, Placement::shard(cut.dim + 1, cut.parts));
  if (stacks(y, x) && cut.dim > 0) return all(node, Placement::shard(cut.dim - 1, cut.parts));
  if (cut.is_shard(0) && !stacks(y, x)) return all(node, cut);
  return {};
}

}  // namespace

OpDef replicate() {
  OpDef def{.op = Op::replicate, .shard = shard_elements};
  def.gradient = [](GradientBuilder& build, const Node& node, ValueId dy) { return conjugate(build, node, Op::all_reduce, dy); };
  def.cost = [](const Signature&) { return Cost{}; };
  return def;
}

OpDef all_reduce() {
  OpDef def{.op = Op::all_reduce, .shard = shard_elements, .cost = moves(1), .in_place = {{0, 0}}};
  def.gradient = [](GradientBuilder&, const Node&, ValueId dy) { return std::vector<ValueId>{dy}; };
  return def;
}

OpDef all_gather() {
  OpDef def{.op = Op::all_gather, .shard = shard_rows, .cost = moves(1)};
  def.gradient = [](GradientBuilder& build, const Node& node, ValueId dy) { return conjugate(build, node, Op::reduce_scatter, dy); };
  return def;
}

OpDef reduce_scatter() {
  OpDef def{.op = Op::reduce_scatter, .shard = shard_rows, .cost = moves(1)};
  def.gradient = [](GradientBuilder& build, const Node& node, ValueId dy) { return conjugate(build, node, Op::all_gather, dy); };
  return def;
}

}  // namespace trainer::define
