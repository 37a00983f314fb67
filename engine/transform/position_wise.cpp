// The inputs are laid out as if they were cut by positions, and the layouts of all other values follow.
#include "engine/transform/position_wise.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "engine/ops/op_def.h"

namespace trainer {
namespace {

using Placements = std::vector<Placement>;

/// How outputs lie if the inputs are cut by positions; nothing where positions meet.
std::optional<Placements> placed(const Graph& graph, const Node& node, const Placements& in, bool joins) {
  if (node.op == Op::positions) return Placements{Placement::shard(0)};
  const bool cut = std::ranges::any_of(in, [](const Placement& one) { return !one.is_replicate(); });
  if (!cut) return Placements(node.outputs.size(), Placement::replicate());
  if (joins) {
    const bool alike = std::ranges::all_of(in, [](const Placement& one) { return one == Placement::shard(1); });
    if (!alike) return {};
    Placements out;
    for (const ValueId output : node.outputs)
      out.push_back(graph.value(output).shape().rank() > 1 ? Placement::shard(out.empty() ? 1 : 2)  // of heads' sums
                                                           : Placement::replicate());
    return out;
  }
  auto out = definition(node.op).shard(graph, node, in);
  if (out && std::ranges::any_of(*out, [](const Placement& one) { return one.is_partial(); })) return {};
  return out;
}

}  // namespace

const Node* where_positions_meet(const Graph& graph, const std::function<bool(const Node&)>& joins) {
  const auto at = [](ValueId id) { return static_cast<std::size_t>(id); };
  Placements of(graph.values.size(), Placement::replicate());
  for (const ValueId input : graph.inputs)
    if (graph.value(input).shape().rank() > 1) of[at(input)] = Placement::shard(1);
  for (const Node& node : graph.nodes) {
    Placements in;
    for (const ValueId input : node.inputs) in.push_back(of[at(input)]);
    const auto out = placed(graph, node, in, joins(node));
    if (!out) return &node;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) of[at(node.outputs[i])] = (*out)[i];
  }
  return nullptr;
}

}  // namespace trainer
