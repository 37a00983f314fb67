// Transfers: what passes between the chunks of a pipeline, and in which order each stage sends and receives.
#pragma once

#include <vector>

#include "engine/plan/strategy.h"

namespace trainer {

/// What crosses from chunk c to chunk c + 1 in a forward pass, and back in a backward pass. A value read further on is
/// passed along.
struct Boundary {
  std::vector<ValueId> activations;  ///< storage values, ascending
  std::vector<ValueId> gradients;
};

/// Boundary c lies between chunks c and c + 1.
std::vector<Boundary> boundaries(const Graph& graph, int num_chunks);

/// One crossing of a boundary, seen by one of its two stages.
struct Transfer {
  int micro_batch = 0;
  int boundary = 0;
  bool backward = false;
  bool send = false;
  int peer = 0;  ///< stage
};

/// [stage][i]: what the stage transfers before its action i, in order; the last entry is what follows its last action.
using OrderedTransfers = std::vector<std::vector<std::vector<Transfer>>>;

/// Source of the order: all transfers of all stages stand in one total order, by when they meet if every action takes
/// its usual time (forward 1, backward 2): as soon as the sender is done, or, where the receiver can wait, as soon
/// after that as both stages are between actions, since what an action communicates of its own stands behind the
/// messages before it. Each stage issues its own in that order. So the first transfer that is not done always has both
/// its ends there, and no set of stages can wait in a circle.
OrderedTransfers order_transfers(const Schedule& schedule);

}  // namespace trainer
