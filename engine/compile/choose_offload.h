// The last resort of `strategy: auto` beside a GPU: where nothing fits, states move to the memory of the host.
#pragma once

#include <optional>

#include "engine/compile/compiled_job.h"

namespace trainer {

/// Tries the job with more and more parts of it off the device, and returns the fastest of those that fit with the
/// fewest, by prediction:
///   1. the optimizer's states and master weights, under any strategy; or what backward passes need, without a
///   pipeline;
///   2. the optimizer's and the gradients, over data ranks; or the optimizer's and what backward passes need;
///   3. the optimizer's, the gradients and the working copies of the weights, over data ranks that shard them;
///   4. all of it.
/// The update runs on the processor of the host where the prediction says that it is faster there. The hosts have to
/// hold what moves (`host_memory` of the hardware file). Nothing if none fits, if the devices are no GPUs, or if the
/// job says anything of its strategy. `strategy_why` says what moved.
std::optional<CompiledJob> choose_offload(const LoadedJob& loaded, const Hardware& hardware);

}  // namespace trainer
