// Tensor parallelism: a forward graph becomes the local graph of one rank of the tensor axis.
#pragma once

#include "engine/graph/graph.h"

namespace trainer::strategies {

struct TensorOptions {
  int degree = 1;
  bool sequence_parallel = false;
};

/// Cuts column- and row-parallel linears by the graph's marks (marks are inferred where a file has none and the pattern is known),
/// attention by heads, embeddings and what cross-entropy reads by rows of the vocabulary, and puts the collectives between them.
/// `graph` is forward; shapes of values and parameters become those of one rank. Throws JobError naming the node that cannot be cut
/// evenly and the degrees that would do.
void tensor_parallel(Graph& graph, const TensorOptions& options);

/// Gives unmarked linears their marks: a linear whose result reaches one other linear through elementwise ops or attention alone is
/// column-parallel and that one row-parallel; what only cross-entropy reads is column-parallel.
void infer_marks(Graph& graph);

}  // namespace trainer::strategies
