// Times of kernels, by device. A class of work and its sizes are read off a signature; equal classes and sizes take
// equal times.
#pragma once

#include "engine/core/signature.h"
#include "engine/cost/estimate.h"
#include "engine/cost/machine_model.h"

namespace trainer::cost {

/// On a GPU: the larger of FLOPs over what products of that shape reach and bytes over what the memory reaches, and
/// what a launch costs.
Estimate gpu_kernel(const MachineModel& machine, const Signature& signature);

class MeasuredTimes;

/// On `threads` of a CPU's cores, while `ranks` ranks of the node do the same: from what was measured there, else the
/// roofline. `cold`: the share of what it reads that no cache holds.
Estimate cpu_kernel(const MachineModel& machine, const MeasuredTimes& measured, const Signature& signature, int threads,
                    int ranks, double cold);

}  // namespace trainer::cost
