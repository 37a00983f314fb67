// A measured machine as a hardware file: what load_machine reads back.
#pragma once

#include <string>

#include "engine/cost/machine_model.h"

namespace trainer::tools {

/// YAML. Figures keep four digits: more were never measured.
std::string hardware_text(const cost::MachineModel& machine);

}  // namespace trainer::tools
