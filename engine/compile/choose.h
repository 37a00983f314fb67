// Choosing: what a job leaves to `auto` is decided by the cost model, with no trial run. The search orders every
// candidate by its score; the best few are planned, verified and played in full; of those the job's goal decides, and
// among ties headroom and simplicity (cost::choose).
#pragma once

#include "engine/compile/compile.h"

namespace trainer {

/// Whether the job leaves anything but its micro-batch to be chosen.
bool leaves_choices(const Job& job);

/// The plan of the job with everything decided, why, and what else there was. Where nothing fits: the plan of what
/// lacks least, with fits = false. Throws JobError where there is no way at all (a batch that no number of data ranks
/// divides).
CompiledJob choose(const LoadedJob& loaded, const Hardware& hardware);

/// Throws JobError where the batch does not divide over the data ranks, or a rank's part into micro-batches.
void check_batch(const LoadedJob& loaded, const Mesh& mesh);

enum class Proof : std::uint8_t { now, later };

/// Compiles a job that leaves nothing but the micro-batch open: the largest that fits. With Proof::later the plan has
/// not been verified.
CompiledJob compile_fixed(const LoadedJob& loaded, const Hardware& hardware, Purpose purpose, Proof proof = Proof::now);

}  // namespace trainer
