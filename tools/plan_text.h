// A plan for people, on stdout: strategy, predicted step, memory, communication, units, pipeline.
#pragma once

#include "tools/planned.h"

namespace trainer::tools {

void put_plan(const Planned& one);

}  // namespace trainer::tools
