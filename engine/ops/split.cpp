// split, concat: a tensor in pieces along its last dim, and pieces as one tensor. Each is the gradient of the other.
// Sizes are those of the operands. Only graph passes make them: graph files do not name them yet.
#include "engine/core/check.h"
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

int last_dim(const Graph& graph, ValueId id) { return graph.value(id).shape().rank() - 1; }

/// Lengths of the pieces into which `cut`, a Shard of the last dim, divides a row of `columns` elements.
std::vector<std::int64_t> lengths_of(std::int64_t columns, Placement cut) {
  const std::int64_t unit = columns / (cut.lead + cut.parts - 1);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(cut.parts), unit);
  lengths[0] = unit * cut.lead;
  return lengths;
}

/// The Shard of `dim` that cuts pieces of these lengths one by one; nothing where Placement cannot say it: all but the
/// first must be of one length, of which the first is a multiple.
std::optional<Placement> shard_of(int dim, std::span<const std::int64_t> lengths) {
  if (lengths.size() == 1) return Placement::shard(dim);
  for (std::int64_t length : lengths.subspan(1))
    if (length != lengths[1]) return {};
  if (lengths[0] % lengths[1] != 0) return {};
  return Placement::shard(dim, static_cast<int>(lengths.size()), static_cast<int>(lengths[0] / lengths[1]));
}

/// Any dim but the last as it is, and sums. A cut of the last dim where each output is a run of whole pieces of it.
Placed shard_split(const Graph& graph, const Node& node, Placing in) {
  const int last = last_dim(graph, node.inputs[0]);
  if (!in[0].is_shard(last)) return all(node, in[0]);
  const std::vector<std::int64_t> lengths = lengths_of(input_shape(graph, node, 0)[-1], in[0]);
  std::vector<Placement> outputs;
  std::size_t at = 0;
  for (ValueId output : node.outputs) {
    const std::size_t first = at;
    std::int64_t left = graph.value(output).shape()[-1];
    while (left > 0 && at < lengths.size()) left -= lengths[at++];
    if (left != 0) return {};
    const std::optional<Placement> cut = shard_of(last, std::span(lengths).subspan(first, at - first));
    if (!cut) return {};
    outputs.push_back(*cut);
  }
  return outputs;
}

/// The other way round: pieces cut along the last dim, each evenly or in pieces of its own, are a tensor of all those
/// pieces.
Placed shard_concat(const Graph& graph, const Node& node, Placing in) {
  const int last = last_dim(graph, node.outputs[0]);
  if (!in[0].is_shard(last)) {
    for (const Placement& input : in)
      if (input != in[0]) return {};
    return all(node, in[0]);
  }
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!in[i].is_shard(last)) return {};
    const std::vector<std::int64_t> more = lengths_of(input_shape(graph, node, i)[-1], in[i]);
    lengths.insert(lengths.end(), more.begin(), more.end());
  }
  const std::optional<Placement> cut = shard_of(last, lengths);
  if (!cut) return {};
  return all(node, *cut);
}

/// Pieces to which no gradient came count as zeros.
std::vector<ValueId> gradient_split(GradientBuilder& build, const Node& node, OutputGradients dy) {
  if (!build.needed(node.inputs[0])) return {kNone};
  std::vector<ValueId> pieces(dy.begin(), dy.end());
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i] == kNone)
      pieces[i] = build.node(node, Op::zero, {}, {}, {build.graph().value(node.outputs[i]).desc()})[0];
  return build.node(node, Op::concat, {}, pieces, {input_desc(build.graph(), node, 0)});
}

std::vector<ValueId> gradient_concat(GradientBuilder& build, const Node& node, OutputGradients dy) {
  std::vector<TensorDesc> pieces;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) pieces.push_back(input_desc(build.graph(), node, i));
  return build.node(node, Op::split, {}, {dy[0]}, pieces);
}

}  // namespace

OpDef split() { return {.op = Op::split, .gradient = gradient_split, .shard = shard_split}; }

OpDef concat() {
  OpDef def{.op = Op::concat};
  def.gradient = gradient_concat;
  def.shard = shard_concat;
  return def;
}

}  // namespace trainer::define
