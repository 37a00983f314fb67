// A plan for people: strategy, predicted step, memory, communication, units, pipeline.
#pragma once

#include <string>

#include "engine/report/planned.h"

namespace trainer::report {

std::string plan_text(const Planned& one);

}  // namespace trainer::report
