// A step as a trace: what the plan calls an instruction, when it ran, and when the cost model has it run.
#pragma once

#include <string>
#include <vector>

#include "engine/cost/predict.h"
#include "engine/monitor/trace.h"
#include "engine/plan/plan.h"
#include "engine/report/step_times.h"
#include "engine/train/train.h"

namespace trainer::report {

/// Adds every rank's step, measured and below it predicted, on one clock, with an arrow for each message measured, and
/// ends the trace. A launch has its FLOPs and bytes, a collective its bytes. Returns where each rank's time went.
std::vector<RankTimes> write_trace(TraceWriter& trace, const Plan& plan, const cost::Prediction& prediction,
                                   const Meetings& meetings, const std::vector<RankTrace>& ranks);

/// The same of a prediction alone: a rank of each role.
void write_predicted_trace(TraceWriter& trace, const Plan& plan, const cost::Prediction& prediction);

/// "computing 80.12 ms (91%), communication that nothing hides 3.20 ms (4%), waiting …".
std::string times_text(const RankTimes& times);
std::string times_text(const cost::RoleTimes& times);

}  // namespace trainer::report
