// Compiling a fixed job: one about which there is nothing left to choose but the micro-batch. The one place that sees
// both the job's words and the planner: it arranges the mesh, builds the graphs, forms units and assembles.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compile/compiled_job.h"
#include "engine/core/mesh.h"

namespace trainer {

/// Throws JobError where the batch does not divide over the data ranks, or a rank's part into micro-batches.
void check_batch(const LoadedJob& loaded, const Mesh& mesh);

/// How far a compilation goes.
/// - proved: verify has accepted the plan.
/// - unproved: the same plan, but verify has not seen it.
/// - draft: the same, except where a list of all micro-batches would replace loops that need too much memory. A list
///   takes ten times as long to make, so the draft keeps the loops, and least_as_list tells the least bytes of the
///   list.
enum class Finish : std::uint8_t { proved, unproved, draft };

/// The job with everything as it was compiled, which leaves nothing to choose.
LoadedJob as_compiled(const LoadedJob& loaded, const CompiledJob& compiled);

/// `micro: auto` is the largest that fits; where none does, fits = false. Throws JobError as `compile` does.
CompiledJob compile_fixed(const LoadedJob& loaded, const Hardware& hardware, Purpose purpose,
                          Finish finish = Finish::proved);

/// What some stage of the pipeline needs at least, where the job's micro-batch is fixed: of `stages` the first that
/// needs more than there is, else the fullest. In a fraction of the time that compiling takes. Throws as that does.
std::int64_t least_bytes(const LoadedJob& loaded, const Hardware& hardware, const std::vector<int>& stages);

}  // namespace trainer
