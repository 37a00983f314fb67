// Fit: whether a job fits into the memory of its devices, what it lacks, and which changes would fix that. What cannot
// fit by its states alone is refused before anything is planned; a plan that does not fit says what takes its memory.
#pragma once

#include <vector>

#include "engine/compile/compiled_job.h"

namespace trainer {

/// Bytes of a rank that no strategy saves: weights, gradients and optimizer states, divided over all ranks of the job.
std::int64_t least_states_bytes(const LoadedJob& loaded);

/// Whether they are no more than a rank's memory.
bool has_room_for_states(const LoadedJob& loaded, const Hardware& hardware);

/// What is wrong where they are more: how much is missing, how many devices would do.
Diagnostic no_room_for_states(const LoadedJob& loaded, const Hardware& hardware);

/// The changes of a job that make it fit, those that change least first: recomputation, micro-batch, data strategy;
/// where none of these helps, the whole strategy; where that does not help, a smaller dtype, the optimizer's states off
/// the device, or more devices. Each was
/// found by the search to fit. Never a pipeline with fewer micro-batches than stages, nor far more devices than the
/// states need. REQUIRES: hardware.machine.
std::vector<Suggestion> what_would_fit(const LoadedJob& loaded, const Hardware& hardware);

/// A compiled job whose plan does not fit, as a mistake in the job: how much is needed, how much there is, what takes
/// most, and as remedies what would fit.
Diagnostic does_not_fit(const LoadedJob& loaded, const CompiledJob& compiled);

}  // namespace trainer
