// Prediction: a plan's step played on a machine. Streams run in issue order, an instruction starts when its stream is
// free, what it waits for (Issued::after) is done, and, if it communicates, all that it meets on other stages are
// ready. One rank of each role is played: the others of a role do the same at the same time.
#pragma once

#include "engine/cost/cost_model.h"
#include "engine/cost/prediction.h"
#include "engine/plan/plan.h"

namespace trainer::cost {

/// Plays `program` of every role; of loops some passes, every further one taking as long as the mean of the last of
/// these. Throws Bug where there is no such program or its communications do not match (a verified plan's do).
///
/// While bytes are on their way kernels take CostModel::overlap_slowdown times as long, for the time that both run;
/// messages between two GPUs hold up no kernels. Of several messages of a rank in one direction each waits for the one
/// before. On a CPU copies take their turns with kernels, as its executor has them do.
///
/// Where the ranks of a CPU have more threads than it has cores, the stages of a pipeline wait for each other often
/// enough that fewer take turns: the step is played once as if all computed at once, and again with the turns that the
/// busy part of it leaves (CostModel::taking_turns).
///
/// The interval is of the slowest role. Estimates of a class (products, attention, all other kernels, each kind of
/// communication over the same axes) err together, so their half widths are summed; classes do not, so those sums are
/// added in quadrature. Of communication that is hidden nothing counts, of exposed at most what is exposed makes a step
/// shorter.
Prediction predict(const Plan& plan, const CostModel& model, ProgramKind program = ProgramKind::step, int part = 0);

}  // namespace trainer::cost
