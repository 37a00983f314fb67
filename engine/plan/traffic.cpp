// How traffic is counted: instruction by instruction, times the passes of the loop that it is in.
#include "engine/plan/traffic.h"

#include <algorithm>
#include <map>

namespace trainer {
namespace {

using TrafficMap = std::map<std::pair<std::string, std::string>, Traffic>;

std::int64_t ring_bytes(const Collective& collective, std::int64_t n) {
  const std::int64_t bytes = std::max(collective.input.region.bytes, collective.output.region.bytes);
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      return 2 * bytes * (n - 1) / n;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_gather:
    case CollectiveKind::all_to_all:
      return bytes * (n - 1) / n;
    case CollectiveKind::shift:
      return bytes;
  }
  return 0;
}

void count(TrafficMap& traffic, const std::string& axis, std::string_view collective, std::int64_t bytes,
           std::int64_t times) {
  Traffic& one = traffic[{axis, std::string(collective)}];
  one.axis = axis;
  one.collective = collective;
  one.count += times;
  one.bytes += times * bytes;
}

}  // namespace

std::vector<Traffic> traffic_of(const Plan& plan, std::size_t role, ProgramKind program, int part) {
  const Program* run = plan.roles[role].program(program, part);
  if (run == nullptr) return {};
  TrafficMap traffic;
  for (std::size_t i = 0; i < run->instructions.size(); ++i) {
    const Issued& issued = run->instructions[i];
    if (const auto* collective = std::get_if<Collective>(&issued.instruction)) {
      const std::int64_t n = plan.mesh.group_size(collective->axes, collective->stages);
      if (n > 1)
        count(traffic, axes_text(plan.mesh, collective->axes), name_of(collective->kind), ring_bytes(*collective, n),
              run->times(i));
    } else if (const auto* exchange = std::get_if<Exchange>(&issued.instruction)) {
      for (const Exchange::Send& send : exchange->sends)
        count(traffic, std::string(name_of(send.axis)), "send", send.region.region.bytes, run->times(i));
    }
  }
  std::vector<Traffic> list;
  for (auto& [key, one] : traffic) list.push_back(std::move(one));
  return list;
}

std::int64_t bytes_of(const std::vector<Traffic>& traffic) {
  std::int64_t bytes = 0;
  for (const Traffic& one : traffic) bytes += one.bytes;
  return bytes;
}

}  // namespace trainer
