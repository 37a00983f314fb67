// Placements along one axis, forward through the nodes: each op's sharding rule decides, and what no rule covers is an error.
#include <algorithm>

#include "engine/build/build.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/ops/op_def.h"

namespace trainer {
namespace {

[[noreturn]] void refuse(const Graph& graph, const Node& node, Axis axis, const std::vector<Placement>& inputs) {
  std::string how;
  for (std::size_t i = 0; i < inputs.size(); ++i) how += (i ? ", " : "") + graph.value(node.inputs[i]).name + " " + inputs[i].str();
  throw JobError({{.file = node.origin.file,
                   .line = node.origin.line,
                   .column = node.origin.column,
                   .path = node.name,
                   .message = std::string(name_of(node.op)) + " cannot be cut so along the axis " + std::string(name_of(axis)) + ": " + how,
                   .value = {},
                   .allowed = {},
                   .suggestion = {},
                   .source = {}}});
}

}  // namespace

void place(Graph& graph, Axis axis, const std::map<ValueId, Placement>& given) {
  const auto on = [&](ValueId id) -> Placement& { return graph.value(id).placement[static_cast<std::size_t>(axis)]; };
  for (const auto& [id, placement] : given) on(id) = placement;
  for (Parameter& parameter : graph.parameters) parameter.placement[static_cast<std::size_t>(axis)] = on(parameter.value);
  for (const Node& node : graph.nodes) {
    std::vector<Placement> inputs;
    inputs.reserve(node.inputs.size());
    for (ValueId id : node.inputs) inputs.push_back(on(id));
    const auto outputs = propagate(graph, node, inputs);
    if (!outputs) refuse(graph, node, axis, inputs);
    CHECK(outputs->size() == node.outputs.size(), "a placement for each output of " + node.name);
    for (std::size_t i = 0; i < outputs->size(); ++i) on(node.outputs[i]) = (*outputs)[i];
  }
}

}  // namespace trainer
