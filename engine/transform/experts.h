// Mixtures of experts as a graph has them: engine/ops/experts.cpp says of which nodes.
#pragma once

#include "engine/graph/graph.h"
#include "engine/ops/router_states.h"
#include "engine/transform/transform.h"

namespace trainer {

/// Puts the nodes that they stand for in place of each `router` and `experts`. In training, with the losses of routers,
/// and what counts the choices that are left out; capacities hold where there are targets. Where experts are cut over
/// ranks, with what takes tokens to them and back.
void place_experts(Graph& graph, const BuildOptions& options);

/// A router whose weight is frozen chooses as it did: its bias stays too. Comes after Parameter::trainable is set.
void hold_frozen_routers(Graph& graph);

/// Whether training changes a state of the model: running statistics, and biases of routers that are trained.
bool moves(const Graph& graph, const GraphState& state);

}  // namespace trainer
