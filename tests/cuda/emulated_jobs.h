// Tiny jobs on the emulated GPU, each rank a thread that has a device of its own. By the kernels that are linked in:
// the GPU's own, or the CPU's (cpu_kernels.cpp).
#pragma once

#include <cstdint>

#include "tests/cuda/gpu_jobs.h"

namespace trainer::tests {

/// Trains it in emulated order `order`: one rank on this thread, several on threads of their own, each a process to
/// NCCL. What rank 0 tells; throws what the first rank that failed of itself threw.
Trained run(const GpuJob& job, std::uint64_t order = 0, TrainOptions options = {});

}  // namespace trainer::tests
