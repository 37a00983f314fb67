// Tiny jobs compiled for GPUs, whichever kind then runs them.
#pragma once

#include <string>

#include "tests/train/tiny_jobs.h"

namespace trainer::tests {

struct GpuJob {
  LoadedJob loaded;
  CompiledJob compiled;
};

/// The job `name` for so many H100s of a node.
GpuJob gpu_job(const TinyJobs& jobs, const std::string& name, const std::string& run, Overrides overrides = {},
               int ranks = 1, Purpose purpose = Purpose::train);

}  // namespace trainer::tests
