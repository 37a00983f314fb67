// How a time is looked up: dim by dim, between the two nearest measured values.
#include "engine/cost/measured_times.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace trainer::cost {
namespace {

double distance(int a, int b) {
  return std::abs(std::log(static_cast<double>(std::max(1, a))) - std::log(static_cast<double>(std::max(1, b))));
}

double share_of(std::int64_t low, std::int64_t high, std::int64_t at) {
  return std::log(static_cast<double>(at) / static_cast<double>(low)) /
         std::log(static_cast<double>(high) / static_cast<double>(low));
}

// Whether a point is of about these sizes in all dims but the first.
bool is_near(const std::vector<std::int64_t>& point, const std::vector<std::int64_t>& sizes) {
  for (std::size_t dim = 1; dim < std::min(point.size(), sizes.size()); ++dim)
    if (point[dim] > 2 * sizes[dim] || sizes[dim] > 2 * point[dim]) return false;
  return true;
}

}  // namespace

MeasuredTimes::MeasuredTimes(const MachineModel& machine)
    : units_(std::max(1, machine.device.units)), between_sizes_(machine.device.kind == DeviceKind::cpu) {
  for (const MeasuredWork& row : machine.device.measured) {
    if (row.rate.value <= 0 ||
        std::any_of(row.sizes.begin(), row.sizes.end(), [](std::int64_t size) { return size < 1; }))
      continue;
    std::vector<Context>& contexts = kernels_[{row.work, row.dtype}];
    auto context = std::find_if(contexts.begin(), contexts.end(), [&](const Context& one) {
      return one.threads == row.threads && one.ranks == row.ranks;
    });
    if (context == contexts.end()) context = contexts.insert(contexts.end(), Context{row.threads, row.ranks, {}});
    context->points.push_back({row.sizes, std::log(row.rate.value), row.rate.spread});
  }
  for (auto& [key, contexts] : kernels_)
    for (Context& context : contexts)
      std::sort(context.points.begin(), context.points.end(),
                [](const Point& a, const Point& b) { return a.sizes < b.sizes; });
  for (const MeasuredCollective& row : machine.collectives) collectives_[row.collective][row.ranks][row.bytes] = row.us;
}

double MeasuredTimes::turns(int threads, int ranks) const {
  return std::max(1.0, static_cast<double>(threads) * ranks / units_);
}

// Points [first, last) agree in the dims before `dim`: between the two values of this dim next to the one asked for,
// each looked up in the dims that follow. Grids may lack corners: each value has its own. But of the first dim, rows, a
// value at which few shapes were measured stands for those alone.
MeasuredTimes::Between MeasuredTimes::at(const Point* first, const Point* last, const std::vector<std::int64_t>& sizes,
                                         std::size_t dim) {
  if (dim >= sizes.size() || dim >= first->sizes.size()) return {first->log_rate, first->spread};
  using Plane = std::pair<const Point*, const Point*>;
  std::vector<Plane> planes;  // of one value each
  std::ptrdiff_t most = 0;
  for (const Point* point = first; point != last; point = planes.back().second) {
    planes.emplace_back(
        point, std::find_if(point, last, [&](const Point& one) { return one.sizes[dim] != point->sizes[dim]; }));
    most = std::max(most, planes.back().second - planes.back().first);
  }
  if (dim == 0)
    std::erase_if(planes, [&](const Plane& plane) {
      return 4 * (plane.second - plane.first) < most &&
             std::none_of(plane.first, plane.second, [&](const Point& one) { return is_near(one.sizes, sizes); });
    });
  const auto high =
      std::ranges::find_if(planes, [&](const auto& plane) { return plane.first->sizes[dim] >= sizes[dim]; });
  if (high == planes.end() || high == planes.begin() || high->first->sizes[dim] == sizes[dim]) {
    const auto& only = high == planes.end() ? planes.back() : *high;
    return at(only.first, only.second, sizes, dim + 1);
  }
  const auto low = std::prev(high);
  const Between a = at(low->first, low->second, sizes, dim + 1), b = at(high->first, high->second, sizes, dim + 1);
  const double share = share_of(low->first->sizes[dim], high->first->sizes[dim], sizes[dim]);
  return {a.log_rate + share * (b.log_rate - a.log_rate), std::max(a.spread, b.spread)};
}

std::optional<Estimate> MeasuredTimes::kernel(const Work& work, int threads, int ranks, double cold) const {
  std::optional<Estimate> time = look_up(work.name, work, threads, ranks);
  if (!time || cold <= 0) return time;
  const std::optional<Estimate> from_memory =
      look_up(std::string(work.name) + std::string(kFromMemory), work, threads, ranks);
  if (!from_memory || from_memory->us <= time->us) return time;
  time->us += cold * (from_memory->us - time->us);
  time->spread = std::max(time->spread, from_memory->spread);
  return time;
}

std::optional<Estimate> MeasuredTimes::look_up(std::string_view name, const Work& work, int threads, int ranks) const {
  const auto found = kernels_.find(Key{name, work.dtype});
  if (found == kernels_.end()) return std::nullopt;
  const Context& context =
      *std::min_element(found->second.begin(), found->second.end(), [&](const Context& a, const Context& b) {
        return std::pair(distance(a.threads, threads), distance(a.ranks, ranks)) <
               std::pair(distance(b.threads, threads), distance(b.ranks, ranks));
      });
  if (!between_sizes_ && std::ranges::find(context.points, work.sizes, &Point::sizes) == context.points.end())
    return std::nullopt;
  const Between between = at(context.points.data(), context.points.data() + context.points.size(), work.sizes, 0);
  const double others = turns(threads, ranks) / turns(context.threads, context.ranks) * std::max(1, context.threads) /
                        std::max(1, threads);
  return Estimate{work.amount / std::exp(between.log_rate) * 1e6 * others, between.spread,
                  counts_flops(work.name) ? Bound::compute : Bound::memory};
}

std::optional<Estimate> MeasuredTimes::collective(std::string_view name, std::int64_t bytes, int ranks,
                                                  int sharing) const {
  const auto found = collectives_.find(name);
  if (found == collectives_.end()) return std::nullopt;
  const auto& by_ranks = found->second;
  const auto nearest = std::min_element(by_ranks.begin(), by_ranks.end(), [&](const auto& a, const auto& b) {
    return distance(a.first, ranks) < distance(b.first, ranks);
  });
  const std::map<std::int64_t, Figure>& times = nearest->second;
  const auto high = times.lower_bound(std::max<std::int64_t>(1, bytes));
  Estimate out{0, 0, Bound::memory};
  if (high == times.end()) {
    const auto& [most, us] = *times.rbegin();
    out.us = us.value * static_cast<double>(bytes) / static_cast<double>(most), out.spread = us.spread;
  } else if (high == times.begin() || high->first == bytes) {
    out.us = high->second.value, out.spread = high->second.spread;
  } else {
    const auto low = std::prev(high);
    const double share = share_of(low->first, high->first, bytes);
    out.us = std::exp(std::log(low->second.value) + share * std::log(high->second.value / low->second.value));
    out.spread = std::max(low->second.spread, high->second.spread);
  }
  // Every rank moves its share: more of them on one memory, and more than there are cores, take so much longer.
  out.us *= turns(1, ranks * sharing) / turns(1, nearest->first);
  return out;
}

}  // namespace trainer::cost
