// Every mistake of a job that can be found before it is planned, in one report: keys and values, cluster, ranks and
// batch, the graph with the job's params, the vocabulary. A mistake that follows from another one is left out.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/hardware.h"
#include "engine/job/job.h"

namespace trainer {

/// load_job and resolve_cluster, and the model held to the job. Throws JobError with all mistakes; IoError if a file
/// cannot be read.
LoadedJob load_checked_job(const std::string& path, const std::vector<std::string>& overrides,
                           const LoadOptions& options, const std::string& hardware_folder,
                           const FindGpus& find_gpus = {});

/// The same of a job that was read.
LoadedJob check_read_job(ReadJob read, const std::string& hardware_folder, const FindGpus& find_gpus = {});

}  // namespace trainer
