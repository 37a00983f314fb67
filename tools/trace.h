// A run's last step as a trace: what the plan calls an instruction, and when it ran.
#pragma once

#include <vector>

#include "engine/monitor/trace.h"
#include "engine/plan/plan.h"
#include "engine/train/train.h"

namespace trainer::tools {

/// Adds every rank's step and ends the trace. A launch has its FLOPs and bytes, a collective its bytes.
void write_trace(TraceWriter& trace, const Plan& plan, const std::vector<RankTrace>& ranks);

}  // namespace trainer::tools
