// A plan for people, on stdout: strategy, predicted step, memory, communication, units, pipeline.
#pragma once

#include "tools/command.h"
#include "tools/prediction.h"

namespace trainer::tools {

void put_plan(const LoadedJob& loaded, const CompiledJob& compiled, const PredictedStep& predicted);

}  // namespace trainer::tools
