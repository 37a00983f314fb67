// How the facts about a cut graph are found: one pass over its nodes for each fact.
#include "engine/plan/assemble/cut_graph.h"

#include <algorithm>
#include <utility>

namespace trainer {
namespace {

bool has_weight_parts(const Schedule& schedule) {
  for (const auto& actions : schedule.stages)
    for (const Action& action : actions)
      if (action.kind == Action::Kind::backward_weight) return true;
  return false;
}

// Weight parts that are put off come after everything else of their micro-batch.
void find_last_uses(CutGraph& cut) {
  const Graph& graph = *cut.graph;
  const auto num_nodes = static_cast<std::int32_t>(graph.nodes.size());
  cut.last_use.assign(graph.values.size(), -1);
  cut.position.reserve(graph.nodes.size());
  for (std::int32_t id = 0; id < num_nodes; ++id) {
    const Node& node = graph.nodes[static_cast<std::size_t>(id)];
    cut.position.push_back(cut.splits_backward && is_weight_part(graph, node) ? id + num_nodes : id);
    for (ValueId input : node.inputs) {
      std::int32_t& last = cut.last_use[static_cast<std::size_t>(graph.storage(input))];
      last = std::max(last, cut.position.back());
    }
  }
  for (ValueId kept : {graph.logits, graph.loss.scores})
    if (kept != kNone && graph.seed == kNone)
      cut.last_use[static_cast<std::size_t>(graph.storage(kept))] = CutGraph::kKept;
  for (const Boundary& boundary : cut.boundaries)
    for (const auto* values : {&boundary.activations, &boundary.gradients})
      for (ValueId value : *values) cut.last_use[static_cast<std::size_t>(value)] = CutGraph::kKept;
}

}  // namespace

bool is_weight_part(const Graph& graph, const Node& node) {
  return node.backward && std::all_of(node.outputs.begin(), node.outputs.end(),
                                      [&](ValueId output) { return graph.value(output).kind == ValueKind::gradient; });
}

CutGraph cut(const Graph& graph, Schedule schedule, int micro_batches, int together) {
  CutGraph result;
  result.graph = &graph;
  result.schedule = std::move(schedule);
  result.micro_batches = micro_batches;
  result.together = together;
  result.splits_backward = has_weight_parts(result.schedule);
  result.nodes.resize(result.schedule.stage_of_chunk.size());
  for (std::size_t id = 0; id < graph.nodes.size(); ++id) {
    const Node& node = graph.nodes[id];
    result.nodes[static_cast<std::size_t>(node.chunk)].push_back(static_cast<NodeId>(id));
    if (graph.loss.sum != kNone &&
        std::find(node.outputs.begin(), node.outputs.end(), graph.loss.sum) != node.outputs.end())
      result.loss_stage = result.stage_of(node.chunk);
  }
  result.boundaries = boundaries(graph, result.num_chunks());
  result.transfers = order_transfers(result.schedule);
  find_last_uses(result);
  return result;
}

CutGraph cut(const Graph& graph, const Rounds& rounds, int micro_batches, int together) {
  CutGraph result = cut(graph, rounds.schedule, micro_batches, together);
  result.rounds = &rounds;
  return result;
}

}  // namespace trainer
