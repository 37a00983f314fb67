// Collectives between GPUs as NCCL runs them: for each algorithm (ring, tree, PAT, reduction in the NVLink switch and
// trees of such) and protocol a latency and a bandwidth, of which it takes the fastest. Bandwidths are the hardware
// file's links; the latencies of steps, the shares of protocols and the channels are NCCL's own tuning constants
// (src/graph/tuning.cc of NCCL 2.18 to 2.30, in GB/s and µs), and what its pipeline adds is derived below. Sources:
// NCCL, src/graph/tuning.cc, docs of nccl-tests (PERFORMANCE.md: bus bandwidth); Patarasuk and Yuan, Bandwidth optimal
// all-reduce (2009); Sanders et al., Two-tree algorithms for full bandwidth broadcast, reduction and scan (2009).
#include <algorithm>
#include <array>
#include <cmath>

#include "engine/cost/collective_times.h"

namespace trainer::cost {
namespace {

enum Protocol : std::uint8_t { low_latency, low_latency_128, simple };
constexpr std::array<Protocol, 3> kProtocols{low_latency, low_latency_128, simple};

// µs by protocol: a collective's base, and a step over NVLink, PCIe and the network.
struct Steps {
  std::array<double, 3> base, nvlink, pcie, network;
};
constexpr Steps kRing{{6.6, 14.0, 8.4}, {0.6, 1.9, 3.4}, {1.0, 2.5, 5.7}, {2.7, 4.0, 14.0}};
constexpr Steps kTree{{6.8, 14.0, 8.4}, {0.6, 1.25, 4.0}, {1.0, 1.9, 4.0}, {5.0, 8.5, 14.0}};
constexpr double kPatBase_us = 8, kPatStep_us = 14, kPatLinear_us = 2.8;
constexpr double kSwitchStep_us = 25, kSwitchTreeStep_us = 20.9;
// The network card is told of every message, three times under the simple protocol.
constexpr double kPost_us = 1;
// Rings of several nodes pay more latency on long messages.
constexpr double kPlateau = 1.4;
// A channel sends a rank's chunk in slices, and no step of a chunk begins before a slice of the step before is there:
// half a chunk, at most a quarter of a step of the channel's buffer (4 MiB in 8 steps).
constexpr double kSlice = 4.0 * 1024 * 1024 / 8 / 4;
// Groups of at most 4 do not reduce in the switch (GB200 NVL Partition User Guide; ml-engineering's sweep on an H200).
constexpr int kSwitchRanks = 5;
// Where a hardware file does not say at which share of the links the switch sums.
constexpr double kReducing = 0.55;
// The switch's pipeline fills over some 8 MiB (Azure AI benchmarking guide, H100 and H200, 2 to 268 MB).
constexpr double kSwitchFill_us = 45, kSwitchFillBytes = 8e6;
// Of the simple protocol's bandwidth: 120 of 128 bytes are data, but what a node of A100 reaches at 2 to 8 MB (Azure AI
// benchmarking guide) is little more than half of it.
constexpr double kShare128 = 0.54;
// Messages to every other rank one by one reach less than a ring, which keeps one neighbour.
constexpr double kAllToAllShare = 0.9;

struct Links {
  double inside = 0;   ///< bytes/µs of a rank to its neighbour on the node
  double between = 0;  ///< bytes/µs of all the group's ranks of a node to other nodes; 0: one node
  bool nvlink = true;
  int channels = 24;
  int capability = 80;
  double inside_more = 0, between_more = 0;  ///< µs of a hop beyond those of the links that NCCL's steps hold for
  double reducing = 0;                       ///< bytes/µs of an all-reduce in the switch; 0: it does not sum
};

double reached(const LinkModel& link) {
  return link.bandwidth.value * (link.achievable.value > 0 ? link.achievable.value : 1) /
         std::max(1.0, link.oversubscription) / 1e6;
}

// Latencies of the links that NCCL's steps were tuned on; another link's hop takes by so much more or less.
double more_latency(const LinkModel& link) {
  const double tuned = link.kind == "nvlink" ? 1.9 : link.kind == "pcie" ? 4.0 : 5.0;
  return link.latency_us.value - tuned;
}

double step_us(double tuned, double more) { return std::max(0.3 * tuned, tuned + more); }

int channels_inside(const MachineModel& machine) { return machine.inside.kind == "nvlink" ? 24 : 4; }

// Rings through a network card are two.
int channels_of(const MachineModel& machine, const GroupShape& group) {
  const int inside = channels_inside(machine);
  return group.nodes > 1 ? std::min(inside, 2 * group.per_node) : inside;
}

Links links_of(const MachineModel& machine, const GroupShape& group) {
  Links links;
  links.inside = reached(machine.inside);
  links.nvlink = machine.inside.kind == "nvlink";
  const double reducing = machine.inside.reducing.value > 0 ? machine.inside.reducing.value : kReducing;
  if (machine.inside.reduces) links.reducing = machine.inside.bandwidth.value * reducing / 1e6;
  links.capability = machine.device.capability;
  links.inside_more = more_latency(machine.inside);
  links.channels = channels_inside(machine);
  // Each rank has a network card of its own, or its share of the node's.
  if (group.nodes > 1 && machine.between) {
    links.between = reached(*machine.between) * group.per_node;
    links.between_more = more_latency(*machine.between);
    links.channels = channels_of(machine, group);
  }
  return links;
}

// Two links that follow each other in every chain: nearly the slower one, and less where both are full. 4 nodes of H100
// reach 331 GB/s where rings inside reach 365 and cards 376 (Voltage Park's benchmarks); 4 nodes of B200 381 where
// cards reach 376 to 400 and rings 682.
double together(double a, double b) {
  const double slow = std::min(a, b), ratio = slow / std::max(a, b);
  return slow * std::pow(1 + std::pow(ratio, 6), -1.0 / 6);
}

// Most that the low-latency protocol moves: eight bytes of data and flags at a time through every multiprocessor of the
// channels.
double low_latency_limit(const Links& links, int nodes) {
  const int generation = links.capability >= 100 ? 3 : links.capability >= 90 ? 2 : links.capability >= 80 ? 1 : 0;
  if (nodes == 1) return std::array{39.0, 87.7, 141.0, 282.0}[static_cast<std::size_t>(generation)] * 1e3;
  return (nodes == 2 ? 39.0 : 20.4) * 1e3;
}

double protocol_bandwidth(const Links& links, Protocol protocol, double bandwidth, int nodes) {
  switch (protocol) {
    case low_latency:
      return std::min(bandwidth / 2, low_latency_limit(links, nodes));
    case low_latency_128:
      return std::min(bandwidth * kShare128, links.channels * (links.capability >= 90 ? 36.7e3 : 20e3));
    case simple:
      return bandwidth;
  }
  return bandwidth;
}

double ring(const Links& links, CollectiveKind kind, double bytes, const GroupShape& group, Protocol protocol) {
  const bool all_reduce = kind == CollectiveKind::all_reduce;
  const double passes = all_reduce ? 2 : 1;
  const double steps = passes * (group.ranks - 1);
  const double hops = group.nodes > 1 ? passes * (group.nodes - 1) : 0;
  const double limit = group.nodes == 1      ? links.inside
                       : group.per_node == 1 ? links.between
                                             : together(links.inside, links.between);
  const double bandwidth = protocol_bandwidth(links, protocol, limit, group.nodes);
  double step = step_us((links.nvlink ? kRing.nvlink : kRing.pcie)[protocol], links.inside_more);
  if (group.nodes > 1) step = std::max(step, kPost_us * (protocol == simple ? 3 : 1));
  const double hop =
      step_us(group.per_node == 1 ? kTree.network[protocol] : kRing.network[protocol], links.between_more);
  double latency = (steps - hops) * step + hops * hop;
  if (protocol == simple && group.nodes > 1 && all_reduce) latency *= kPlateau;
  const double moved = passes * bytes * (group.ranks - 1) / group.ranks;
  if (protocol == simple) {
    const double slice = std::min(kSlice, bytes / (2.0 * group.ranks * links.channels));
    latency += steps * slice / (bandwidth / links.channels);
  }
  return kRing.base[protocol] + latency + moved / bandwidth;
}

// One rank a node gathers and scatters by trees aggregated in parallel (NCCL's PAT, since 2.23): the logarithm of the
// nodes in latency, a part that is still linear, and three quarters of a ring's bandwidth.
double parallel_trees(const Links& links, double bytes, const GroupShape& group) {
  const double depth = std::log2(group.nodes) * step_us(kPatStep_us, links.between_more) / 3.5;
  return kPatBase_us + depth + kPatLinear_us * group.ranks +
         bytes * (group.ranks - 1) / group.ranks / (links.between * 0.75);
}

// Two trees over the nodes, each carrying half; chains inside a node.
double tree(const Links& links, double bytes, const GroupShape& group, Protocol protocol) {
  const double chain =
      (group.per_node - 1) * step_us((links.nvlink ? kTree.nvlink : kTree.pcie)[protocol], links.inside_more);
  const double depth =
      group.nodes > 1 ? std::ceil(std::log2(group.nodes)) * step_us(kTree.network[protocol], links.between_more) : 0;
  // A node sends every byte up and down once; of two nodes one way each.
  double bandwidth = links.inside;
  if (group.nodes > 1) bandwidth = together(links.inside, links.between * (group.nodes == 2 ? 2 : 1));
  bandwidth *= 0.92 * (bytes < 64e6 ? 0.7 : 0.9);
  if (protocol == low_latency) bandwidth = std::min(bandwidth / 3.8, low_latency_limit(links, group.nodes));
  if (protocol == low_latency_128) bandwidth *= group.nodes == 1 ? 7.0 / 9 : 0.94;
  return kTree.base[protocol] + 2 * (chain + depth) + 2 * bytes / bandwidth;
}

// Sums made by the NVLink switch of a node; trees over the nodes.
double in_switch(const Links& links, double bytes, const GroupShape& group) {
  double bandwidth = links.reducing;
  const double fill = kSwitchFill_us * bytes / (bytes + kSwitchFillBytes);
  double latency = kSwitchStep_us + fill;
  if (group.nodes > 1) {  // every level of the tree, up and down, fills a pipeline of its own
    latency += 2 * std::ceil(std::log2(group.nodes)) * (step_us(kSwitchTreeStep_us, links.between_more) + fill);
    bandwidth = together(bandwidth, links.between / (group.nodes == 2 ? 1 : 2));
  }
  return latency + bytes / bandwidth;
}

double all_to_all(const Links& links, double bytes, const GroupShape& group) {
  const double n = group.ranks, inside = (group.per_node - 1) / n, outside = (n - group.per_node) / n;
  double time = bytes * inside / (links.inside * kAllToAllShare);
  if (group.nodes > 1) time = std::max(time, bytes * outside / (links.between / group.per_node * kAllToAllShare));
  return kRing.base[simple] + (group.nodes > 1 ? step_us(kRing.network[simple], links.between_more) : 0) +
         1.0 * (n - 1) + time;
}

// Every rank sends to one other; between nodes, one rank of each does.
double shift(const Links& links, double bytes, const GroupShape& group) {
  double time = group.per_node > 1 ? bytes / links.inside : 0;
  if (group.nodes > 1) time = std::max(time, bytes * group.per_node / links.between);
  return kRing.base[simple] + (group.nodes > 1 ? step_us(kRing.network[simple], links.between_more) : 0) + time;
}

double fastest(const Links& links, CollectiveKind kind, double bytes, const GroupShape& group) {
  if (kind == CollectiveKind::all_to_all) return all_to_all(links, bytes, group);
  if (kind == CollectiveKind::shift) return shift(links, bytes, group);
  double best = 1e300;
  for (Protocol protocol : kProtocols) {
    if (protocol == low_latency_128 && !links.nvlink) continue;
    best = std::min(best, ring(links, kind, bytes, group, protocol));
    if (kind == CollectiveKind::all_reduce) best = std::min(best, tree(links, bytes, group, protocol));
  }
  const bool gathers = kind == CollectiveKind::all_gather || kind == CollectiveKind::reduce_scatter;
  if (gathers && group.nodes > 1 && group.per_node == 1) best = std::min(best, parallel_trees(links, bytes, group));
  const bool wide = group.per_node >= kSwitchRanks;
  if (kind == CollectiveKind::all_reduce && links.reducing > 0 && wide)
    best = std::min(best, in_switch(links, bytes, group));
  return best;
}

}  // namespace

Estimate gpu_collective(const MachineModel& machine, CollectiveKind kind, DType, std::int64_t bytes,
                        const GroupShape& group) {
  if (group.ranks <= 1 || bytes <= 0) return {};
  const Links links = links_of(machine, group);
  const double us = fastest(links, kind, static_cast<double>(bytes), group);
  const double moving =
      static_cast<double>(bytes) / (links.between > 0 ? std::min(links.inside, links.between) : links.inside);
  const double link =
      group.nodes > 1 && machine.between ? machine.between->achievable.spread : machine.inside.achievable.spread;
  return {us,
          std::hypot(moving > us / 2   ? 0.08
                     : moving > us / 4 ? 0.15
                                       : 0.3,
                     link),
          moving > us / 3 ? Bound::network : Bound::latency};
}

double gpu_share_of_channels(const MachineModel& machine, const GroupShape& group) {
  return static_cast<double>(channels_of(machine, group)) / channels_inside(machine);
}

Estimate gpu_send(const MachineModel& machine, std::int64_t bytes, bool same_node, int) {
  const bool inside = same_node || !machine.between;
  const LinkModel& link = inside ? machine.inside : *machine.between;
  const Steps& steps = kRing;
  const double step = step_us(
      inside ? (link.kind == "nvlink" ? steps.nvlink : steps.pcie)[simple] : steps.network[simple], more_latency(link));
  // Without a switch a device's links are divided among its neighbours; rings use them all, one pair its own.
  const double own = inside && link.kind == "nvlink" && !link.is_switch ? std::max(1, machine.devices_per_node - 1) : 1;
  const double moving = static_cast<double>(bytes) * own / reached(link);
  return {steps.base[simple] + step + moving, 0.2, moving > step ? Bound::network : Bound::latency};
}

}  // namespace trainer::cost
