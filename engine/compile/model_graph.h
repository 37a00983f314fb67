// A job's model as graphs and its optimizer as a kernel: what compiling it and searching for its strategy both begin
// with.
#pragma once

#include <string>
#include <vector>

#include "engine/job/job.h"
#include "engine/plan/assemble/assemble.h"
#include "engine/transform/transform.h"

namespace trainer {

/// For a micro-batch of `micro` samples on a rank.
BuildOptions build_options(const Job& job, std::int64_t micro, BuildOptions::Mode mode);

/// Makes samples that are sequences `length` long.
void set_length(BuildOptions& options, std::int64_t length);

/// REQUIRES: the mode is not automatic.
/// `gathers_again`: TensorKeep::shard.
RecomputePolicy recompute_policy(const ActivationCheckpointingJob& job, bool gathers_again);

/// Makes rings of attention that is cut for one (engine/transform/ring.h). Throws JobError where the kernels of a GPU
/// cannot compute them.
void make_rings(Graph& graph, bool on_gpu);

/// Its kernel, attributes and states.
OptimizerSpec optimizer_spec(const OptimizerJob& job);

/// Bytes that its states take for each parameter, without padding.
double state_bytes(const OptimizerSpec& spec);

/// AssembleOptions::loss_scaling.
Attributes loss_scaling(const LossScale& job);

/// The nodes with which the chunks after the first begin, as the job's `split` has it. Throws JobError where the model
/// has too few pieces or lacks a node that the job names.
std::vector<std::string> chunk_begins(const LoadedJob& loaded, const Graph& graph, int num_chunks);

}  // namespace trainer
