// Assembly: a graph, the actions of a schedule and the hooks of a data strategy become the programs of a plan.
#pragma once

#include <vector>

#include "engine/plan/assemble/options.h"
#include "engine/plan/plan.h"

namespace trainer {

/// The whole plan: memory planned, order derived, and proved.
///
/// Fields of the step: those of the batch (all micro-batches of the rank, in order), "lr" f32, one for each of
/// `optimizers`, and "step" i32 in, "metrics" f32 {factor, loss_scale, grad_norm, loss} out. Of evaluate: the fields of
/// the batch in, "evaluation" f64 {loss sum, count, right answers} out. Of both, where the loss has them: "figures" f64
/// out, the sums over all ranks. Of sample and prompt: the graph's inputs in, and "position" i32 where it has one,
/// "logits" out in the compute dtype. `refresh` makes working copies from the master weights; it
/// runs after they were set from outside.
Plan assemble(const AssembleOptions& options);

/// What some stage of that plan needs at least (engine/plan/memory.h), of those in `stages` the first that needs more
/// than the limit, else the fullest. No other stage is put together: a plan that cannot fit is not worth more.
std::int64_t least_bytes(const AssembleOptions& options, const std::vector<int>& stages);

/// Micro-batches that such a step has where loops stand for what repeats itself, or all of them.
int shortest_list(const Schedule& schedule, int micro_batches);

}  // namespace trainer
