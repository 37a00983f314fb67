// Search: every way to spread a job over its ranks, scored without planning it. Profiles give the times and bytes of
// pieces; the schedule itself is played for the order of a pipeline; collectives of the data axes hide behind what can
// hide them. The best are then sketched (sketch.h), planned and played in full by whoever asked
// (engine/compile/choose.cpp): scores order candidates, they decide nothing that is close.
//
// Sources: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC
// 2021, section 3 (how the axes trade); Zheng et al., "Alpa", OSDI 2022 (pruning by lower bounds); Korthikanti et al.
// 2022, section 4 (memory of activations).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/cost/candidate.h"
#include "engine/cost/search_space.h"

namespace trainer::cost {

struct SearchResult {
  std::vector<Scored> scored;           ///< what fits first; then by the job's goal, equals by complexity
  std::vector<std::string> impossible;  ///< "tensor 16: …": degrees that the model or the batch refuse
};

/// Deterministic. Does not throw for a job that nothing fits: then no candidate `fits`, and the first is the one that
/// lacks least.
SearchResult search(const SearchSpace& space, ProfileSource& profiles);

/// What needs little memory, the least first: every mesh and schedule with the smallest micro-batch and the most
/// recomputation that the job allows. Among them may be some that `search` left out because they are slow.
std::vector<Scored> frugal(const SearchSpace& space, ProfileSource& profiles);

/// Some candidate that fits by its score, at the smallest micro-batch: the first in an order from the simple to the
/// intricate. A pipeline that the job does not ask for has at least as many micro-batches as stages. Nothing if none
/// does.
std::optional<Candidate> first_fit(const SearchSpace& space, ProfileSource& profiles);

}  // namespace trainer::cost
