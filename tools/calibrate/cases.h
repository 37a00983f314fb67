// What calibrate measures: signatures of every class of work, as plans have them, over grids of sizes.
#pragma once

#include <string>
#include <vector>

#include "engine/core/signature.h"

namespace trainer::tools {

enum class Effort : std::uint8_t { quick, full };

/// Equal for equal effort. Classes are neighbours; `only`: those whose name begins so; empty: all.
std::vector<Signature> calibration_cases(Effort effort, const std::vector<std::string>& only);

/// Those to be measured with operands in memory as well: large ones.
std::vector<Signature> cases_from_memory(Effort effort, const std::vector<std::string>& only);

}  // namespace trainer::tools
