// A measured machine as a hardware file: what load_machine reads back.
#pragma once

#include <string>

#include "engine/cost/machine_model.h"

namespace trainer::tools {

/// YAML. Figures keep four digits: more were never measured.
std::string hardware_text(const cost::MachineModel& machine);

/// Parts of it: a figure; text in quotes; a row of device.measured.
std::string figure_text(const cost::Figure& figure);
std::string quoted(const std::string& text);
std::string work_row(const cost::MeasuredWork& work);

/// Writes it beside the file first, and puts it there as a whole. Throws IoError.
void write_hardware_file(const std::string& path, const std::string& text);

}  // namespace trainer::tools
