// A pass over the nodes for each kind of action.
#include "engine/plan/assemble/phases.h"

#include <algorithm>
#include <set>

namespace trainer {
namespace {

using Kind = Action::Kind;

bool belongs(const Graph& graph, const Node& node, Kind kind) {
  switch (kind) {
    case Kind::forward:
      return !node.backward;
    case Kind::backward:
      return node.backward;
    case Kind::backward_input:
      return node.backward && !is_weight_part(graph, node);
    case Kind::backward_weight:
      return node.backward && is_weight_part(graph, node);
  }
  return false;
}

}  // namespace

std::map<Action::Kind, Phase> phases_of(const CutGraph& cut, int chunk,
                                        const std::function<std::size_t(const std::string&)>& unit_of) {
  const Graph& graph = *cut.graph;
  std::map<Kind, Phase> phases;
  std::map<Kind, std::set<std::size_t>> writers;  // units that get gradients in a phase
  for (const Kind kind : {Kind::forward, Kind::backward, Kind::backward_weight, Kind::backward_input}) {
    Phase& phase = phases[kind];
    std::map<std::size_t, std::size_t> first_read, last_read, last_gradient;  // by unit: index in phase.nodes
    for (NodeId id : cut.nodes[static_cast<std::size_t>(chunk)]) {
      const Node& node = graph.nodes[static_cast<std::size_t>(id)];
      if (!belongs(graph, node, kind) || graph.is_view(node)) continue;
      const std::size_t index = phase.nodes.size();
      phase.nodes.push_back(id);
      for (ValueId input : node.inputs)
        if (const Value& value = graph.value(graph.storage(input)); value.kind == ValueKind::parameter) {
          const std::size_t unit = unit_of(value.name);
          first_read.try_emplace(unit, index);
          last_read[unit] = index;
        }
      for (ValueId output : node.outputs)
        if (const Value& value = graph.value(output); value.kind == ValueKind::gradient)
          last_gradient[unit_of(graph.value(value.parameter).name)] = index;
    }
    for (auto* lists : {&phase.opens, &phase.closes, &phase.completes}) lists->resize(phase.nodes.size());
    for (const auto& [unit, index] : first_read) phase.opens[index].push_back(unit);
    for (const auto& [unit, index] : last_read) phase.closes[index].push_back(unit);
    for (const auto& [unit, index] : last_gradient) {
      if (kind == Kind::backward_input && writers[Kind::backward_weight].contains(unit)) continue;  // more comes
      phase.completes[index].push_back(unit);
      writers[kind].insert(unit);
    }
  }
  return phases;
}

}  // namespace trainer
