// prune: what the wanted values do not need is left out, parameters and inputs included.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace trainer {

/// Keeps the nodes that `roots` need, and renumbers the values. An output of the graph (loss, logits) that is not
/// needed becomes kNone.
void prune(Graph& graph, const std::vector<ValueId>& roots);

}  // namespace trainer
