// Expert parallelism: each rank has some of the experts.
#pragma once

#include "engine/graph/graph.h"
#include "engine/job/job.h"

namespace trainer::strategies {

/// Cuts the experts of a forward graph along the expert axis of its mesh. REQUIRES: it was built for that mesh
/// (BuildOptions::mesh). Throws JobError where there are none, where they do not divide, and for what does not go
/// beside it.
void expert_parallel(Graph& graph, const LoadedJob& loaded);

}  // namespace trainer::strategies
