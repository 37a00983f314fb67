// Interleaving: the order in which two micro-batches go through the nodes of one action, so that the one computes while
// collectives of the other travel. This is the overlap of Domino (Wang et al., 2024, arXiv:2409.15241), over
// micro-batches in place of slices of one.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/graph/graph.h"

namespace trainer {

/// Nodes [begin, end) of a phase, for the micro-batch `which` of those that an action takes.
struct Run {
  std::size_t begin = 0, end = 0;
  int which = 0;
};

/// Every micro-batch's runs are in order and cover `nodes` once, and the first micro-batch is never behind the second.
/// REQUIRES: `together` is 1 or 2.
std::vector<Run> interleave(const Graph& graph, const std::vector<NodeId>& nodes, int together);

}  // namespace trainer
