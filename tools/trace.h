// A run's last step as a trace: what the plan calls an instruction, when it ran, and when it would have run by the plan alone.
#pragma once

#include <string>
#include <vector>

#include "engine/monitor/trace.h"
#include "engine/plan/plan.h"
#include "engine/train/train.h"
#include "tools/step_times.h"

namespace trainer::tools {

/// Adds every rank's step, measured and planned, on one clock, with an arrow for each message, and ends the trace. A launch has its
/// FLOPs and bytes, a collective its bytes. Returns where each rank's time went.
std::vector<RankTimes> write_trace(TraceWriter& trace, const Plan& plan, const std::vector<RankTrace>& ranks);

/// "computing 80.12 ms (91%), communication that nothing hides 3.20 ms (4%), waiting …".
std::string times_text(const RankTimes& times);

}  // namespace trainer::tools
