// A plan for people, on stdout: strategy, memory, communication, units, pipeline.
#pragma once

#include "tools/command.h"

namespace trainer::tools {

void put_plan(const LoadedJob& loaded, const CompiledJob& compiled);

}  // namespace trainer::tools
