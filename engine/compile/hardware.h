// What a job's cluster comes to: this computer, or the machine that a hardware file describes. Contradictions between the job and the file
// are found here and nowhere else; what is decided is written into the job, so that all after this sees a cluster without `auto`s.
#pragma once

#include <optional>
#include <string>

#include "engine/compile/compile.h"
#include "engine/cost/cost_model.h"

namespace trainer {

/// Decides `cluster` of `loaded`: the device, the devices of a node (`auto` takes the file's), the path of the hardware file. Returns the
/// machine that cluster.hardware names, priced as the job says; nothing where it is `auto`, which is a CPU. `folder` holds the
/// hardware files that have names. A second time changes nothing.
///
/// Throws JobError with all of: a name or path that is not there, mistakes in the file, a device or backend that the machine has not, more
/// devices than a node has, nodes without a link between them, a dtype without a peak, GPUs without a hardware file, a cost without a price.
std::optional<cost::MachineModel> settle_cluster(LoadedJob& loaded, const std::string& folder);

/// Bytes that the plan of one rank may take: of its device, or its share of the node's memory, and no more than cluster.memory_limit.
std::int64_t memory_limit(const Job& job, const Hardware& hardware, std::int64_t ranks_per_node);

/// Where the ranks of `mesh` are. REQUIRES: hardware.machine, which must outlive the result.
cost::Cluster cluster_of(const Mesh& mesh, const Hardware& hardware);
cost::Cluster cluster_of(const CompiledJob& compiled, const Hardware& hardware);

}  // namespace trainer
