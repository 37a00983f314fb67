// Context parallelism: each rank has a part of every sequence.
#pragma once

#include "engine/graph/graph.h"
#include "engine/job/strategy_job.h"

namespace trainer::strategies {

/// Cuts the inputs of a forward graph along the context axis of its mesh: [batch, seq, …] in dim 1, into contiguous
/// parts or, for a ring, zigzag (engine/core/zigzag.h). What follows for every value is engine/transform/distribute.h's
/// to find: attention gathers the keys and values of all positions, or takes zigzag parts, of which
/// engine/transform/ring.h makes a ring. Packed q, k and v are split, since k and v go other ways than q. Throws
/// JobError where a sequence does not divide, with what would do, and where a ring cannot compute attention.
void context_parallel(Graph& graph, ContextKind kind);

}  // namespace trainer::strategies
