// Context parallelism: each rank has a contiguous part of every sequence.
#pragma once

#include "engine/graph/graph.h"

namespace trainer::strategies {

/// Cuts the inputs of a forward graph along the context axis of its mesh: [batch, seq, …] in dim 1. What follows for
/// every value, and that attention gathers the keys and values of all positions, is engine/transform/distribute.h's to
/// find. Packed q, k and v are split, since only k and v are gathered. Throws JobError where a sequence does not
/// divide, with the degrees that would do.
void context_parallel(Graph& graph);

}  // namespace trainer::strategies
