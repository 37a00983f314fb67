// CutGraph: a graph as a schedule cuts it into chunks. What the programs of all stages need of it is found once, in
// passes over the graph; what a stage does for itself is then proportional to its own chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/assemble/rounds.h"
#include "engine/plan/assemble/transfers.h"
#include "engine/plan/strategy.h"

namespace trainer {

/// Whether the node computes nothing but gradients of parameters: what a schedule may put off. All else of a backward
/// pass, repeated forward nodes among it, is its input part.
bool is_weight_part(const Graph& graph, const Node& node);

struct CutGraph {
  static constexpr std::int32_t kKept = 0x7FFFFFFF;

  const Graph* graph = nullptr;
  Schedule schedule;
  const Rounds* rounds = nullptr;  ///< what makes loops of the program; null: every micro-batch is in `schedule`
  int micro_batches = 1;           ///< of the step
  int together = 1;                ///< micro-batches that an action takes at once
  bool splits_backward = false;    ///< some stage puts off weight parts
  int loss_stage = -1;             ///< where the loss is computed; -1: nowhere
  std::vector<std::vector<NodeId>> nodes;  ///< of each chunk, ascending
  std::vector<std::int32_t> position;      ///< of each node: its place in the order of emission within a micro-batch
  std::vector<std::int32_t>
      last_use;  ///< of each storage value: the position of its last reader; kKept: not to be overwritten
  std::vector<Boundary> boundaries;  ///< [c]: between chunks c and c + 1
  OrderedTransfers transfers;        ///< [stage][action]: before it; the last entry is what follows the last action

  /// The micro-batches of an action or transfer that `schedule` gives the number `number`: so many from this one on.
  int first_of(int number) const { return number * together; }
  int num_chunks() const { return static_cast<int>(schedule.stage_of_chunk.size()); }
  int stage_of(int chunk) const { return schedule.stage_of_chunk[static_cast<std::size_t>(chunk)]; }
};

/// REQUIRES: `graph` outlives the result; its nodes' chunks are those of the schedule.
CutGraph cut(const Graph& graph, Schedule schedule, int micro_batches, int together = 1);
/// The same for a step with loops. REQUIRES: `rounds` outlives the result.
CutGraph cut(const Graph& graph, const Rounds& rounds, int micro_batches, int together);

}  // namespace trainer
