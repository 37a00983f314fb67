// Tiny jobs on the emulated GPU, each rank a thread that has a device of its own. By the kernels that are linked in:
// the GPU's own, or the CPU's (cpu_kernels.cpp).
#pragma once

#include <cstdint>
#include <functional>

#include "tests/cuda/gpu_jobs.h"

namespace trainer::tests {

/// Trains it in emulated order `order`: one rank on this thread, several on threads of their own, each a process to
/// NCCL. What rank 0 tells; throws what the first rank that failed of itself threw. `after_step` is called on rank 0
/// when it tells of a step, with its number.
Trained run(const GpuJob& job, std::uint64_t order = 0, TrainOptions options = {},
            std::function<void(std::int64_t)> after_step = {});

}  // namespace trainer::tests
