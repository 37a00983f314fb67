// Collectives between GPUs: rings over the slowest link.
#include <algorithm>

#include "engine/cost/collective_times.h"

namespace trainer::cost {
namespace {

double ring_share(CollectiveKind kind, int ranks) {
  const double n = ranks;
  switch (kind) {
    case CollectiveKind::all_reduce: return 2 * (n - 1) / n;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_gather:
    case CollectiveKind::all_to_all: return (n - 1) / n;
    case CollectiveKind::broadcast: return 1;
  }
  return 1;
}

double reached(const LinkModel& link) { return link.bandwidth.value * (link.achievable.value > 0 ? link.achievable.value : 1) / std::max(1.0, link.oversubscription); }

}  // namespace

Estimate gpu_collective(const MachineModel& machine, CollectiveKind kind, DType, std::int64_t bytes, const GroupShape& group) {
  double bandwidth = reached(machine.inside), latency = machine.inside.latency_us.value;
  if (group.nodes > 1 && machine.between) {
    bandwidth = std::min(bandwidth, reached(*machine.between) * group.per_node);
    latency = machine.between->latency_us.value;
  }
  const double steps = (kind == CollectiveKind::all_reduce ? 2 : 1) * (group.ranks - 1);
  return {steps * latency + ring_share(kind, group.ranks) * static_cast<double>(bytes) / bandwidth * 1e6, 0.2, Bound::network};
}

Estimate gpu_send(const MachineModel& machine, std::int64_t bytes, bool same_node, int) {
  const LinkModel& link = same_node || !machine.between ? machine.inside : *machine.between;
  return {link.latency_us.value + static_cast<double>(bytes) / reached(link) * 1e6, 0.2, Bound::network};
}

}  // namespace trainer::cost
