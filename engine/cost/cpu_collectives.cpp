// Collectives between ranks on CPUs: inside a node they are reads and writes of its memory, as measured or by its
// bandwidth.
#include <algorithm>

#include "engine/cost/collective_times.h"
#include "engine/cost/measured_times.h"
#include "engine/plan/plan.h"

namespace trainer::cost {

Estimate cpu_collective(const MachineModel& machine, const MeasuredTimes& measured, CollectiveKind kind, DType dtype,
                        std::int64_t bytes, const GroupShape& group) {
  if (group.nodes > 1) return gpu_collective(machine, kind, dtype, bytes, group);
  if (kind == CollectiveKind::shift) return cpu_send(machine, measured, bytes, true, group.ranks * group.sharing);
  if (const std::optional<Estimate> time = measured.collective(name_of(kind), bytes, group.ranks, group.sharing))
    return *time;
  // Each rank reads the others' parts of its share and writes; a memory moves it all.
  const double moved = static_cast<double>(bytes) * (group.ranks + 1) * group.sharing;
  return {machine.inside.latency_us.value + moved / machine.device.memory_bandwidth.value * 1e6, 0.3, Bound::memory};
}

Estimate cpu_send(const MachineModel& machine, const MeasuredTimes& measured, std::int64_t bytes, bool same_node,
                  int sharing) {
  if (!same_node) return gpu_send(machine, bytes, false, sharing);
  if (const std::optional<Estimate> time = measured.collective("send", bytes, 2, std::max(1, sharing / 2)))
    return *time;
  return {
      machine.inside.latency_us.value + 2 * static_cast<double>(bytes) / machine.device.memory_bandwidth.value * 1e6,
      0.3, Bound::memory};
}

}  // namespace trainer::cost
