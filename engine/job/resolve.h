// What a data strategy is once each `auto` of its keys is resolved: what is sharded, how long gathered parameters stay,
// when gradients are reduced. The compiler plans by it and `trainer plan` prints it; the strategy's record
// (data_strategies.h) says what `auto` is.
#pragma once

#include <string>

#include "engine/core/mesh.h"
#include "engine/job/strategy_job.h"

namespace trainer {

struct ResolvedData {
  bool shard_states = false;      ///< optimizer states and master weights: 1/N of each unit
  bool shard_gradients = false;   ///< 1/N after their reduction
  bool shard_parameters = false;  ///< working copies: 1/N, gathered for use
  /// Of gathered parameters; `step` where the whole working copy stays. Never automatic.
  Keep keep = Keep::step;
  /// Of gradients; `step` under local_sgd, which reduces none. Never automatic.
  Reduce reduce = Reduce::step;
  // What travels as codes of 8 bits (SentAs::int8).
  bool int8_gathers = false;     ///< working copies
  bool int8_reductions = false;  ///< gradients
  bool secondary = false;  ///< after a unit's first gather of a step it is gathered among the ranks of one replica
  friend bool operator==(const ResolvedData&, const ResolvedData&) = default;
};

/// `pipelined`: there is more than one stage, and so many micro-batches pass between two uses of a unit's gathered
/// copy.
ResolvedData resolve(const DataStrategyJob& data, bool pipelined);

/// A replica that has a secondary copy of the weights: how many ranks it has along the shard axis; or why there is no
/// such, and what the key may be instead.
struct SecondaryReplica {
  int shard = 0;
  std::string refused{}, allowed{};
};
/// Of `left` ranks that the axes replicate and shard share; `mesh` has the others. `of_node`: ranks of a node.
SecondaryReplica secondary_replica(const DataStrategyJob& data, const Mesh& mesh, std::int64_t left, std::int64_t nodes,
                                   std::int64_t of_node);

}  // namespace trainer
