// What plays a program: predict.h is the way in.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/cost/cost_model.h"
#include "engine/cost/prediction.h"
#include "engine/plan/plan.h"

namespace trainer::cost {

/// What every instruction of a role's program takes alone; of an exchange nothing, for its messages are timed when both
/// ends are ready.
using OwnTimes = std::vector<Estimate>;

/// Plays a program of every role of the plan as it is listed, loops once; `programs[role]`, `own[role]`. Kernels and
/// communication are those of the role `detailed`, or of the slowest.
Prediction play(const Plan& plan, const CostModel& model, std::span<const Program* const> programs,
                const std::vector<OwnTimes>& own, std::optional<std::size_t> detailed = std::nullopt);

}  // namespace trainer::cost
