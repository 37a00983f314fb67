// Which optimizer updates which parameter: that of the first group whose globs match it, else train.optimizer. Muon
// updates matrices of blocks; what else it is given goes to its `others`.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/job/job.h"

namespace trainer {

struct Optimizers {
  std::vector<OptimizerJob> used;  ///< those that update something, in the order of the job
  std::unordered_map<std::string, std::int32_t>
      of_parameter;  ///< index in `used`, by name; frozen parameters have none
};

/// Of a graph that was read and not yet differentiated. Throws JobError for globs that match nothing, groups whose
/// parameters other groups took before, and a muon that no matrix is left for.
Optimizers optimizers_of(const LoadedJob& loaded, const Graph& graph);

/// Bytes that the states of a trained parameter take on average, without padding. `graph`: the job's whole_graph, which
/// is read where it is not given.
double state_bytes(const LoadedJob& loaded, const Graph& graph);
double state_bytes(const LoadedJob& loaded);

}  // namespace trainer
