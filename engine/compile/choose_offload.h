// The last resort of `strategy: auto` beside a GPU: where nothing fits, states move to the memory of the host.
#pragma once

#include <optional>

#include "engine/compile/compiled_job.h"

namespace trainer {

/// Tries the job with more and more off the device, and returns the first that fits:
///   1. the optimizer's states and master weights, under any strategy;
///   2. the gradients too, over data ranks;
///   3. the working copies of the weights too, over data ranks that shard them.
/// Of these the update runs on the processor of the host, where the prediction says that it is faster there.
/// The hosts have to hold what moves (`host_memory` of the hardware file). Nothing if none fits, if the devices are no
/// GPUs, or if the job says anything of its strategy. `strategy_why` says what moved.
std::optional<CompiledJob> choose_offload(const LoadedJob& loaded, const Hardware& hardware);

}  // namespace trainer
