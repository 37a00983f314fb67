// Tiny jobs on the emulated GPU: compiled for one, and run with each rank a thread that has a device of its own.
#pragma once

#include <string>
#include <vector>

#include "tests/train/tiny_jobs.h"

namespace trainer::tests {

/// Of kernels that are linked in: the GPU's own, or the CPU's (cpu_kernels.cpp).
struct GpuJob {
  LoadedJob loaded;
  CompiledJob compiled;
};

/// The job `name` for so many H100s of a node.
GpuJob gpu_job(const TinyJobs& jobs, const std::string& name, const std::string& run, Overrides overrides = {}, int ranks = 1);

/// Trains it in emulated order `order`: one rank on this thread, several on threads of their own, each a process to NCCL. What rank 0 tells;
/// throws what the first rank that failed of itself threw.
Trained run(const GpuJob& job, std::uint64_t order = 0, TrainOptions options = {});

}  // namespace trainer::tests
