// What a data strategy is once each `auto` of its keys is resolved: what is sharded, how long gathered parameters stay,
// when gradients are reduced. The compiler plans by it and `trainer plan` prints it; the strategy's record
// (data_strategies.h) says what `auto` is.
#pragma once

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
  friend bool operator==(const ResolvedData&, const ResolvedData&) = default;
};

/// `pipelined`: there is more than one stage, and so many micro-batches pass between two uses of a unit's gathered
/// copy.
ResolvedData resolve(const DataStrategyJob& data, bool pipelined);

}  // namespace trainer
