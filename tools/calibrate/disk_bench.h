// How fast a disk keeps what training offloads to it (engine/run/offload_file.h): parts as large as a plan's, one after
// the other.
#pragma once

#include <string>

#include "engine/cost/machine_model.h"
#include "tools/calibrate/cases.h"

namespace trainer::tools {

/// bytes/s of a new file of 1 GiB (of quick effort 128 MiB) in the folder: written until it is on the disk, and read
/// when no memory holds it any more. The median of some rounds. Throws IoError where the file cannot be.
cost::DiskModel disk_speed(const std::string& folder, Effort effort);

}  // namespace trainer::tools
