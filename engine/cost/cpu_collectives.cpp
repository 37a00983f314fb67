// Collectives between ranks on CPUs: inside a node they are reads and writes of its memory.
#include <algorithm>

#include "engine/cost/collective_times.h"

namespace trainer::cost {

Estimate cpu_collective(const MachineModel& machine, CollectiveKind kind, DType dtype, std::int64_t bytes, const GroupShape& group) {
  if (group.nodes > 1) return gpu_collective(machine, kind, dtype, bytes, group);
  // Each rank reads the others' parts of its share and writes; a memory moves it all.
  const double moved = static_cast<double>(bytes) * (group.ranks + 1) * group.sharing;
  return {machine.inside.latency_us.value + moved / machine.device.memory_bandwidth.value * 1e6, 0.3, Bound::memory};
}

Estimate cpu_send(const MachineModel& machine, std::int64_t bytes, bool same_node) {
  if (!same_node) return gpu_send(machine, bytes, false, 1);
  return {machine.inside.latency_us.value + 2 * static_cast<double>(bytes) / machine.device.memory_bandwidth.value * 1e6, 0.3, Bound::memory};
}

}  // namespace trainer::cost
