// Compilation: a job becomes a plan. Needs no device, no data and no launcher. A job goes through these stages in this
// order, and each has one verb:
//
//   read      the file: defaults are filled in, and what it leaves to `auto` stays so      engine/job/load.cpp
//   resolve   the cluster: device, ranks of a node and hardware follow from what is there  hardware.h
//   choose    what the cost model is asked for: strategy, micro-batch, recomputation       choose.h
//             where nothing fits on GPUs: what moves to their host                         choose_offload.h
//   resolve   the strategy: each `auto` left follows from mesh and graph                   resolve_strategy.h
//
// To resolve is to follow a rule, to choose is to compare predictions. A job about which there is nothing left to
// choose is fixed; fixed.h compiles it.
#pragma once

#include "engine/compile/compiled_job.h"

namespace trainer {

/// Compiles a job whose cluster is resolved. Throws JobError (located in the job or the graph file) for whatever a user
/// can mend, a batch that does not divide among them. A plan that does not fit is returned with fits = false.
CompiledJob compile(const LoadedJob& loaded, const Hardware& hardware, Purpose purpose);

}  // namespace trainer
