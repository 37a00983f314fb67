// Mixtures of experts as a graph has them: engine/ops/experts.cpp says of which nodes.
#pragma once

#include "engine/graph/graph.h"

namespace trainer {

/// Puts the nodes that they stand for in place of each `router` and `experts`. `training`: with the losses of routers,
/// and what counts the choices that capacities leave out. `capacities`: whether those hold.
void place_experts(Graph& graph, bool training, bool capacities);

}  // namespace trainer
