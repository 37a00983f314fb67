// Resolves `cluster:` to a machine: this computer, or the one that a hardware file describes. Contradictions between
// the job and the file are found here and nowhere else; what follows is written into the job, so that all after this
// sees a cluster without `auto`s.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "engine/compile/compiled_job.h"
#include "engine/cost/cost_model.h"

namespace trainer {

/// The GPUs of this computer, all of one kind.
struct GpusHere {
  int count = 0;
  std::string name;  ///< as CUDA calls them; a hardware file is found by it
  std::string none;  ///< why there is none, where there is none
};
using FindGpus = std::function<GpusHere()>;

/// Resolves `cluster` of `loaded`: the device, the devices of a node (`auto` takes the file's), the path of the
/// hardware file. Returns the machine that cluster.hardware names, priced as the job says. Where it is `auto`: this
/// computer's GPUs, if the job wants them or takes what there is, by the file that has their name, as many a node as
/// there are here; else nothing, which is this computer's CPU. `folder` holds the hardware files that have names.
/// `find_gpus` is asked only then, so that a job that names its hardware is planned alike everywhere; empty: there is
/// none. A second time changes nothing.
///
/// Throws JobError with all of: a name or path that is not there, mistakes in the file, a device or backend that the
/// machine has not, more devices than a node has, nodes without a link between them, a dtype without a peak, GPUs that
/// are not here or have no hardware file, a cost without a price.
std::optional<cost::MachineModel> resolve_cluster(LoadedJob& loaded, const std::string& folder,
                                                  const FindGpus& find_gpus = {});

/// Bytes that the plan of one rank may take: of its device, or its share of the node's memory, and no more than
/// cluster.memory_limit.
std::int64_t memory_limit(const Job& job, const Hardware& hardware, std::int64_t ranks_per_node);

/// Where the ranks of `mesh` are. REQUIRES: hardware.machine, which must outlive the result.
cost::Cluster cluster_of(const Mesh& mesh, const Hardware& hardware);
cost::Cluster cluster_of(const CompiledJob& compiled, const Hardware& hardware);

/// The prediction of a step, which the compiled job keeps. REQUIRES: hardware.machine.
const cost::Prediction& predict_step(CompiledJob& compiled, const Hardware& hardware);

}  // namespace trainer
