// Choosing: what a job leaves to the cost model, with no trial run. The search scores every candidate. Of those that
// could be taken the step is sketched, and what would be taken then is planned and played in full, until what would be
// taken has a plan (promises.h, finalists.h). The job's goal decides, and among ties headroom and simplicity
// (cost::choose). The plan that is taken is verified.
#pragma once

#include "engine/compile/compiled_job.h"

namespace trainer {

/// Whether the job leaves anything but its micro-batch to be chosen.
bool leaves_choices(const Job& job);

/// The job compiled as it was chosen, why, and what else there was. Where nothing fits: the plan of what lacks least,
/// with fits = false. Throws JobError where there is no way at all (a batch that no number of data ranks divides).
CompiledJob choose(const LoadedJob& loaded, const Hardware& hardware);

}  // namespace trainer
