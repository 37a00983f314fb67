// Advice: changes of a job that would make its step faster, or its samples cheaper, by the cost model's own prediction.
// Found by scores, so that asking costs little; nothing is planned. What a person chose stands until the person changes
// it.
#pragma once

#include <vector>

#include "engine/compile/compiled_job.h"

namespace trainer {

/// The most worthwhile first; times are `step_us`, the predicted step of `compiled`, scaled by the ratio of two scores:
/// - a batch within a quarter of the job's that all ranks can divide, where the job's cannot be divided and the ranks
///   go to other axes instead;
/// - the micro-batch left to `auto`, where the job fixes one;
/// - a vocabulary padded to a multiple of 64, whose products fill the tiles of a GPU;
/// - where masters and states are in the host's memory, the update by the other one of GPU and host.
/// Only what saves more than 3% of the time of a sample. Empty where the plan does not fit. REQUIRES: hardware.machine.
std::vector<Suggestion> advise(const LoadedJob& loaded, const Hardware& hardware, const CompiledJob& compiled,
                               double step_us);

}  // namespace trainer
