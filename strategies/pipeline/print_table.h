// A schedule for people: stages as rows, time slots as columns.
#pragma once

#include <string>

#include "engine/plan/strategy.h"

namespace trainer::strategies {

/// The table of `schedule` with a slot for each forward, input part and weight part and two for an undivided backward,
/// at most `width` characters wide (or what two slots take): slots that do not fit are left out of the middle, and a
/// line below says which; of long pipelines only the letters stand. Each stage's idle share of the step and most live
/// activations (chunks) are before its row, bubble and legend below.
std::string print_table(const Schedule& schedule, int width = 140);

}  // namespace trainer::strategies
