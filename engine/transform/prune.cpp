// One pass back over the nodes finds what is needed, one forward renumbers.
#include "engine/transform/prune.h"

#include <algorithm>

#include "engine/core/index.h"

namespace trainer {
namespace {

std::vector<bool> needed_values(const Graph& graph, const std::vector<ValueId>& roots) {
  std::vector<bool> needed(graph.values.size(), false);
  for (ValueId root : roots) needed[at(root)] = true;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const bool read =
        std::any_of(node->outputs.begin(), node->outputs.end(), [&](ValueId id) { return needed[at(id)]; });
    if (!read && !node->outputs.empty()) continue;  // a node without outputs is there for its states
    for (ValueId id : node->inputs) needed[at(id)] = true;
    for (ValueId id : node->outputs) needed[at(id)] = true;
  }
  return needed;
}

}  // namespace

void prune(Graph& graph, const std::vector<ValueId>& roots) {
  const std::vector<bool> needed = needed_values(graph, roots);
  if (std::all_of(needed.begin(), needed.end(), [](bool is) { return is; })) return;
  std::vector<ValueId> renamed(graph.values.size(), kNone);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (!needed[i]) continue;
    renamed[i] = static_cast<ValueId>(kept);
    if (kept < i) graph.values[kept] = std::move(graph.values[i]);
    ++kept;
  }
  graph.values.erase(graph.values.begin() + static_cast<std::ptrdiff_t>(kept), graph.values.end());
  const auto rename = [&](ValueId& id) { id = id == kNone ? kNone : renamed[at(id)]; };
  for (Value& value : graph.values) {
    rename(value.alias_of);
    rename(value.parameter);
  }
  std::erase_if(graph.nodes,
                [&](const Node& node) { return !node.outputs.empty() && renamed[at(node.outputs[0])] == kNone; });
  for (Node& node : graph.nodes) {
    std::for_each(node.inputs.begin(), node.inputs.end(), rename);
    std::for_each(node.outputs.begin(), node.outputs.end(), rename);
  }
  std::for_each(graph.inputs.begin(), graph.inputs.end(), rename);
  std::erase(graph.inputs, kNone);
  for (GraphState& state : graph.states) rename(state.value);
  std::erase_if(graph.states, [](const GraphState& state) { return state.value == kNone; });
  for (Parameter& parameter : graph.parameters) rename(parameter.value);
  std::erase_if(graph.parameters, [](const Parameter& parameter) { return parameter.value == kNone; });
  for (ValueId* id : {&graph.seed, &graph.step, &graph.position, &graph.loss.sum, &graph.loss.targets,
                      &graph.loss.scores, &graph.loss.auxiliary, &graph.logits})
    rename(*id);
  std::for_each(graph.loss.figures.begin(), graph.loss.figures.end(), rename);
  if (graph.loss.sum == kNone) graph.loss = {};
}

}  // namespace trainer
