// Times of collectives and messages. A group is described by where its ranks are, since that decides which links carry
// it.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"
#include "engine/cost/estimate.h"
#include "engine/cost/machine_model.h"
#include "engine/plan/instruction.h"

namespace trainer::cost {

/// The ranks of one group.
struct GroupShape {
  int ranks = 1;
  int nodes = 1;     ///< that they are spread over
  int per_node = 1;  ///< the most of them on one node
  int sharing = 1;   ///< groups of the same kind that use one node's links to other nodes at the same time
};

/// As NCCL would run it: the fastest of ring, tree and in-switch reduction.
Estimate gpu_collective(const MachineModel& machine, CollectiveKind kind, DType dtype, std::int64_t bytes,
                        const GroupShape& group);
/// Of the channels that a collective inside a node has, each of which holds a multiprocessor, those that this group's
/// have.
double gpu_share_of_channels(const MachineModel& machine, const GroupShape& group);
/// Between two devices, on one node or not; `sharing`: messages that leave a node at the same time.
Estimate gpu_send(const MachineModel& machine, std::int64_t bytes, bool same_node, int sharing);

class MeasuredTimes;

/// Ranks as threads or processes of CPUs; `sharing`: ranks of the node.
Estimate cpu_collective(const MachineModel& machine, const MeasuredTimes& measured, CollectiveKind kind, DType dtype,
                        std::int64_t bytes, const GroupShape& group);
Estimate cpu_send(const MachineModel& machine, const MeasuredTimes& measured, std::int64_t bytes, bool same_node,
                  int sharing);

}  // namespace trainer::cost
