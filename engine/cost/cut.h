// Cut: where a pipeline is cut when memory is short. By time alone (strategies/pipeline/split.h) a stage without the
// head takes a block more, and holds its weights.
#pragma once

#include <vector>

#include "engine/cost/profile.h"
#include "engine/plan/strategy.h"

namespace trainer::cost {

/// What the chunks of a pipeline have in memory.
struct ChunkBytes {
  double trained = 0, frozen = 0;  ///< of a parameter: weights, states and gradients
  std::vector<double> in_flight;   ///< of each chunk: how many times a stage holds its activations when it is fullest
  int chunks_of_stage = 1;
  double most = 0;  ///< what a chunk may take
};

/// For each chunk: how many micro-batches of it are alive when its stage holds most.
std::vector<double> in_flight(const Schedule& schedule);

/// The first piece of each chunk. No chunk takes more than `bytes.most`, or where there is no such cut, the fullest
/// takes as little as can be; within that, times are as even as can be (the least sum of their fourth powers).
/// REQUIRES: no more chunks than pieces.
std::vector<int> cut_for_memory(const std::vector<Piece>& pieces, const ChunkBytes& bytes);

}  // namespace trainer::cost
