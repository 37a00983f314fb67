// A plan as one page of HTML: no network, no other files; the same bytes for the same plan.
#pragma once

#include <string>

#include "engine/compile/compile.h"
#include "engine/report/json.h"
#include "engine/report/prediction.h"

namespace trainer::report {

/// The size is bounded: of long steps several instructions are one block (engine/report/timeline.h).
std::string plan_page(const LoadedJob& loaded, const CompiledJob& compiled, const PredictedStep& predicted);

}  // namespace trainer::report
