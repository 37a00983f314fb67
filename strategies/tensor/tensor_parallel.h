// Tensor parallelism: a table of how the parameters of a layer lie over the tensor axis. What follows from it for every
// value, and which collectives that takes, is engine/transform/distribute.h's to find.
#pragma once

#include "engine/graph/graph.h"

namespace trainer::strategies {

/// Cuts the parameters of a forward graph along the tensor axis of its mesh, by the graph's marks (inferred where a
/// file has none and the pattern is known). Throws JobError naming the node that cannot be cut evenly and the degrees
/// that would do.
void tensor_parallel(Graph& graph);

/// Gives unmarked linears their marks: a linear whose result reaches one other linear through elementwise ops or
/// attention only is column-parallel and that one row-parallel; what only cross-entropy reads is column-parallel.
void infer_marks(Graph& graph);

}  // namespace trainer::strategies
