// Distribution: a graph whose inputs and parameters lie over Graph::mesh becomes one in which every value does.
#pragma once

#include "engine/graph/graph.h"

namespace trainer {

/// Gives every value of a forward graph its spec, by the rules of the ops (OpDef::shard), from those of inputs and
/// parameters. Where a node cannot work on operands as they lie, they are redistributed by collectives, and it is an
/// error where no collective helps:
///
///   a Partial operand          is summed where it is first read: by all_reduce, or along `to_rows` by reduce_scatter
///                              to rows of its own (sequence parallelism); later readers take the sum
///   a cut operand              is gathered for a reader that then computes a part of its own: the gradient is a
///                              reduce_scatter
///   a Replicate operand        of such a reader enters by `replicate`, whose gradient is an all_reduce, along axes
///                              where ranks have the same tokens (along the others gradients stay Partial, down to
///                              the parameters)
///   statistics of a batch      (batch_norm) are summed over the ranks of the batch where all are to have the same
///   logits cut by classes      make cross-entropy three nodes (engine/ops/loss.cpp), so that no rank ever holds
///                              all of them
///
/// Throws JobError that names the node, the operand and the axis. Sources: Shoeybi et al., "Megatron-LM", 2019, section
/// 3 (f and g); Korthikanti et al., 2022, section 4.2.2; the redistributions are those of PyTorch's DTensor.
void distribute(Graph& graph, Axes to_rows);

/// Gives every value of a differentiated graph its spec, by the same rules, and inserts nothing. Throws JobError like
/// `distribute`.
void propagate_placements(Graph& graph);

}  // namespace trainer
