// What plays a program: predict.h is the way in.
#pragma once

#include <vector>

#include "engine/cost/predict.h"

namespace trainer::cost {

/// What every instruction of a role's program takes alone; of an exchange nothing, for its messages are timed when both ends are ready.
using OwnTimes = std::vector<Estimate>;

/// Plays `program` of every role; `own[role]`.
Prediction play(const Plan& plan, const CostModel& model, ProgramKind program, const std::vector<OwnTimes>& own);

}  // namespace trainer::cost
