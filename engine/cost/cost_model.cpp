// Where the ranks of a group are, and which device's times apply.
#include "engine/cost/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/cost/collective_times.h"
#include "engine/cost/kernel_times.h"
#include "engine/cost/measured_times.h"
#include "engine/ops/op_def.h"
#include "engine/plan/plan.h"

namespace trainer::cost {
namespace {

constexpr double kHostStartUs = 20;  // an estimate: until the threads of a processor have begun to work

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15u + (hash >> 29);
}

struct SignatureHash {
  std::size_t operator()(const Signature& signature) const {
    std::uint64_t hash = static_cast<std::uint64_t>(signature.op);
    for (const TensorDesc& tensor : signature.operands) {
      hash = mix(hash, static_cast<std::uint64_t>(tensor.dtype));
      for (std::int64_t size : tensor.shape.sizes()) hash = mix(hash, static_cast<std::uint64_t>(size));
    }
    return hash;
  }
};

struct GroupKey {
  std::uint8_t axes;
  std::vector<std::int32_t> stages;
  auto operator<=>(const GroupKey&) const = default;
};

// All wait for the slowest: the expected largest of n normal deviations (Cramér, Mathematical Methods of
// Statistics, 28.6).
double slowest_of(int devices, double variation) {
  if (devices < 2) return 1;
  const double u = std::sqrt(2 * std::log(devices));
  return 1 + variation * (u + (0.577 - (std::log(std::log(devices)) + std::log(4 * std::numbers::pi)) / 2) / u);
}

}  // namespace

struct CostModel::Impl {
  explicit Impl(const Cluster& where) : cluster(where), measured(*where.machine) {}

  Cluster cluster;
  MeasuredTimes measured;
  mutable std::unordered_map<Signature, Estimate, SignatureHash> kernels;
  mutable std::map<GroupKey, GroupShape> groups;
  mutable std::array<double, 1U << kNumAxes> beside{};  // overlap_slowdown by axes; 0: not asked for yet

  const MachineModel& machine() const { return *cluster.machine; }
  bool cuda() const { return machine().device.kind == DeviceKind::cuda; }
  double slowest = 1;  ///< time of the slowest of the mesh's devices, of that of a common one
  // What a step walks over comes round when all else has passed: from caches while all of it fits, from memory once it
  // is twice as much.
  double cold() const {
    const std::int64_t cache = machine().device.cache_bytes;
    return cache > 0 ? std::clamp(static_cast<double>(cluster.working_bytes) / static_cast<double>(cache) - 1, 0.0, 1.0)
                     : 0;
  }
  Estimate of_mean_rank(const Signature& signature) const;
  std::optional<Estimate> measured_here(const Signature& signature) const;
  int node_of(int rank) const { return rank / std::max(1, cluster.ranks_per_node); }
  int ranks_on_node() const { return std::min(std::max(1, cluster.ranks_per_node), cluster.mesh.world_size()); }

  // Ranks lie on nodes in order, so the group of the first rank of a stage is spread as every other; of several stages
  // the first one's.
  GroupShape group(Axes axes, const std::vector<std::int32_t>& stages) const {
    const auto [at, added] = groups.try_emplace(GroupKey{axes.mask, stages});
    if (!added) return at->second;
    Coordinates first{};
    if (axes.has(Axis::pipeline) && !stages.empty()) first[static_cast<std::size_t>(Axis::pipeline)] = stages.front();
    const std::vector<int> ranks = cluster.mesh.group(cluster.mesh.rank(first), axes, stages);
    std::map<int, int> on_node;
    for (int rank : ranks) ++on_node[node_of(rank)];
    GroupShape& shape = at->second;
    shape.ranks = static_cast<int>(ranks.size());
    shape.nodes = static_cast<int>(on_node.size());
    for (const auto& [node, count] : on_node) shape.per_node = std::max(shape.per_node, count);
    shape.sharing = std::max(1, ranks_on_node() / shape.per_node);
    return shape;
  }

  static double bytes_per_us(const LinkModel& link) {
    return link.bandwidth.value * (link.achievable.value > 0 ? link.achievable.value : 1) /
           std::max(1.0, link.oversubscription) / 1e6;
  }

  // By rings over all the group's ranks, a card of its own for each: every byte passes the links inside, and a part of
  // them those between.
  LinkShare shares(CollectiveKind kind, double bytes, const GroupShape& group, double us) const {
    if (us <= 0) return {};
    const double n = group.ranks;
    double inside = bytes * (n - 1) / n, between = inside / group.per_node;
    if (kind == CollectiveKind::all_reduce) inside *= 2, between *= 2;
    if (kind == CollectiveKind::all_to_all)
      inside = bytes * (group.per_node - 1) / n, between = bytes * (n - group.per_node) / n;
    if (kind == CollectiveKind::shift) inside = between = bytes;
    LinkShare shares;
    if (group.per_node > 1)
      shares.inside = static_cast<float>(std::min(1.0, inside / bytes_per_us(machine().inside) / us));
    if (group.nodes > 1 && machine().between)
      shares.between = static_cast<float>(std::min(1.0, between / bytes_per_us(*machine().between) / us));
    return shares;
  }

  // Whether every such pair is on one node.
  bool same_node(Axis axis, int peer) const {
    int stride = 1;
    for (Axis inner : kAxes)
      if (inner > axis) stride *= cluster.mesh.size(inner);
    const int extent = stride * cluster.mesh.size(axis);
    return extent <= cluster.ranks_per_node && cluster.ranks_per_node % extent == 0 &&
           std::abs(peer) < cluster.mesh.size(axis);
  }
};

CostModel::CostModel(const Cluster& cluster) : impl_(std::make_unique<Impl>(cluster)) {
  impl_->slowest = slowest_of(cluster.mesh.world_size(), cluster.machine->device.variation.value);
}
CostModel::~CostModel() = default;

// Ranks meet behind a kernel sooner or later, so what counts is the busiest rank's.
Estimate CostModel::kernel(const Signature& signature) const {
  const auto [at, added] = impl_->kernels.try_emplace(signature);
  if (!added) return at->second;
  at->second = impl_->of_mean_rank(signature);
  at->second.us *= busiest(signature);
  return at->second;
}

Estimate CostModel::Impl::of_mean_rank(const Signature& signature) const {
  if (!cuda()) return cpu_kernel(machine(), measured, signature, cluster.threads, ranks_on_node(), cold());
  const std::optional<Estimate> known = measured_here(signature);
  Estimate estimate = known ? *known : gpu_kernel(machine(), signature);
  if (estimate.bound == Bound::compute) estimate.us *= slowest;
  return estimate;
}

double CostModel::taking_turns(double busy) const {
  // Of several nodes each may hold ranks of one stage, which compute at the same time.
  if (impl_->cuda() || impl_->ranks_on_node() < impl_->cluster.mesh.world_size()) return 1;
  const double turns = static_cast<double>(std::max(1, impl_->cluster.threads)) * impl_->ranks_on_node() /
                       std::max(1, impl_->machine().device.units);
  return turns > 1 ? std::clamp(turns * busy, 1.0, turns) / turns : 1;
}

// By its own name, as calibrate writes it; or by its class, where a file says so.
std::optional<Estimate> CostModel::Impl::measured_here(const Signature& signature) const {
  if (measured.empty()) return std::nullopt;
  Work work = work_of(signature);
  const std::string exact = exact_name(signature);
  const std::string_view of_class = std::exchange(work.name, exact);
  if (const std::optional<Estimate> known = measured.kernel(work, 1, 1)) return known;
  // Muon's class is that of products in f32, and codes of fp8 have that of bf16.
  if (signature.op == Op::muon_orthogonalize || multiplies_fp8(signature)) return std::nullopt;
  work.name = of_class;
  return measured.kernel(work, 1, 1);
}

Estimate CostModel::collective(CollectiveKind kind, DType dtype, Axes axes, const std::vector<std::int32_t>& stages,
                               std::int64_t bytes) const {
  const GroupShape group = impl_->group(axes, stages);
  if (group.ranks == 1) return {};
  if (!impl_->cuda()) return cpu_collective(impl_->machine(), impl_->measured, kind, dtype, bytes, group);
  std::optional<Estimate> measured;
  if (group.nodes == 1) measured = impl_->measured.collective(name_of(kind), bytes, group.ranks, group.sharing);
  Estimate estimate = measured ? *measured : gpu_collective(impl_->machine(), kind, dtype, bytes, group);
  estimate.links = impl_->shares(kind, static_cast<double>(bytes), group, estimate.us);
  return estimate;
}

Estimate CostModel::send(Axis axis, int peer, std::int64_t bytes) const {
  const bool same_node = impl_->same_node(axis, peer);
  if (!impl_->cuda()) return cpu_send(impl_->machine(), impl_->measured, bytes, same_node, impl_->ranks_on_node());
  Estimate estimate = gpu_send(impl_->machine(), bytes, same_node, impl_->ranks_on_node());
  const bool inside = same_node || !impl_->machine().between;
  const double moving =
      static_cast<double>(bytes) / Impl::bytes_per_us(inside ? impl_->machine().inside : *impl_->machine().between);
  const auto share = static_cast<float>(std::min(1.0, moving / estimate.us));
  estimate.links = inside ? LinkShare{share, 0} : LinkShare{0, share};
  return estimate;
}

Estimate CostModel::copy(std::int64_t bytes) const {
  // PCIe 4 x16 as data sheets give it, of which copies from pinned memory reach some four fifths; a CPU copies inside
  // its memory.
  const double bandwidth = impl_->cuda() ? 25e9 : std::max(1e9, impl_->machine().device.memory_bandwidth.value / 2);
  return {(impl_->cuda() ? 5.0 : 1.0) + static_cast<double>(bytes) / bandwidth * 1e6, 0.3, Bound::memory};
}

Estimate CostModel::move(Space elsewhere, bool comes, std::int64_t bytes) const {
  const MachineModel& machine = impl_->machine();
  const auto moved = [&](const Figure& bandwidth, double start_us) {
    return Estimate{start_us + static_cast<double>(bytes) / bandwidth.value * 1e6, bandwidth.spread, Bound::memory};
  };
  if (elsewhere == Space::host) return moved(machine.host_link.value > 0 ? machine.host_link : Figure{25e9, 0.3}, 5);
  // Of a disk that nothing describes: a solid-state one.
  const DiskModel disk = machine.disk.value_or(DiskModel{{2e9, 0.5}, {1e9, 0.5}});
  Figure share = comes ? disk.read : disk.write;
  share.value /= impl_->ranks_on_node();
  return moved(share, 100);
}

Estimate CostModel::on_host(const Signature& signature) const {
  const Cost cost = cost_of(signature);
  return on_host(static_cast<std::int64_t>(cost.bytes_read + cost.bytes_written));
}

Estimate CostModel::on_host(std::int64_t bytes) const {
  // Of a processor that nothing describes: of a server with eight channels of DDR4 for each of two sockets.
  const Figure known = impl_->machine().host_bandwidth, bandwidth = known.value > 0 ? known : Figure{300e9, 0.5};
  const double share = bandwidth.value / impl_->ranks_on_node();
  return {kHostStartUs + static_cast<double>(bytes) / share * 1e6, bandwidth.spread, Bound::memory};
}

double CostModel::overlap_slowdown() const { return impl_->machine().overlap_slowdown; }

double CostModel::overlap_slowdown(Axes axes, const std::vector<std::int32_t>& stages) const {
  const double whole = impl_->machine().overlap_slowdown;
  if (!impl_->cuda()) return whole;
  const auto beside = [&] {
    return 1 + (whole - 1) * gpu_share_of_channels(impl_->machine(), impl_->group(axes, stages));
  };
  if (!stages.empty()) return beside();
  double& known = impl_->beside[axes.mask];
  if (known == 0) known = beside();
  return known;
}
const Cluster& CostModel::cluster() const { return impl_->cluster; }

}  // namespace trainer::cost
