// A batch norm reads the running statistics in evaluation; in training it makes statistics of the batch.
#pragma once

#include "engine/graph/graph.h"

namespace trainer {

/// Makes nodes for kernels of every batch_norm as the file gives it. Evaluation (`training` false) keeps the node.
/// Training replaces it by batch_norm_sums, batch_norm_apply and batch_norm_update (engine/ops/batch_norm.cpp), all of
/// its name.
void place_batch_norms(Graph& graph, bool training);

}  // namespace trainer
