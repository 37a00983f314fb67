// row_squares, over_root: what an adapter that trains magnitudes (engine/transform/adapter.h) makes of norms of rows.
// The squares are no function of parameters to the gradient: it takes them as they are (Liu et al., "DoRA", 2024,
// section 4.3).
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

/// By rows; by columns, of which each rank sums its own.
Placed shard_row_squares(const Graph&, const Node& node, Placing in) {
  const Placement weight = in[0], a = in[1], b = in[2];
  if (weight.is_shard(0) && b == weight && a.is_replicate()) return all(node, weight);
  if (weight.is_shard(1) && a == weight && b.is_replicate()) return all(node, Placement::partial());
  return {};
}

std::vector<ValueId> gradient_over_root(GradientBuilder& build, const Node& node, OutputGradients dy) {
  if (!build.needed(node.inputs[0])) return {kNone, kNone};
  const TensorDesc dx = input_desc(build.graph(), node, 0);
  return {build.node(node, Op::over_root, {}, {dy[0], node.inputs[1]}, {dx})[0], kNone};
}

/// Element by element, and linear in x.
Placed shard_over_root(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard(0) && in[1] == in[0]) return all(node, in[0]);
  if (in[0].is_partial() && in[1].is_replicate()) return all(node, in[0]);
  return {};
}

}  // namespace

OpDef row_squares() {
  OpDef def{.op = Op::row_squares};
  def.shard = shard_row_squares;
  def.flops = [](const Signature& s) {
    return 2.0 * static_cast<double>(s.operands[0].elements()) * static_cast<double>(s.operands[1].shape[0]);
  };
  return def;
}

OpDef over_root() {
  OpDef def{.op = Op::over_root};
  def.gradient = gradient_over_root;
  def.shard = shard_over_root;
  return def;
}

}  // namespace trainer::define
