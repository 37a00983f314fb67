// How rows are grouped: by dynamic programming over the lengths that occur, with a fixed cost for each plan.
#include "engine/train/row_groups.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "engine/compile/lengths.h"

namespace trainer {
namespace {

/// What another plan costs, in tokens: reading N weights at some 4 GB/s, against 2 N FLOPs a token at 10^11 and at some
/// 10^14 FLOP/s.
constexpr std::int64_t kPlanOnProcessors = 2048, kPlanOnGpus = std::int64_t{1} << 18;

/// The next length of five significant bits and more.
std::int64_t rounded_up(std::int64_t length) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(length));
  const std::int64_t step = std::int64_t{1} << std::max(0, bits - 6);
  return (length + step - 1) / step * step;
}

struct RunLength {
  std::int64_t longest = 0;
  std::size_t end = 0;  ///< of the rows up to that length
};

}  // namespace

std::vector<std::size_t> cheapest_runs(std::span<const std::int64_t> lengths, std::int64_t per_run) {
  std::vector<RunLength> steps;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (steps.empty() || rounded_up(steps.back().longest) != rounded_up(lengths[i])) steps.emplace_back();
    steps.back() = {lengths[i], i + 1};
  }
  // By dynamic programming: the least cost of the first so many steps, and where the last run of it begins.
  std::vector<std::int64_t> least{0};
  std::vector<std::size_t> begin{0};
  for (std::size_t last = 1; last <= steps.size(); ++last) {
    least.push_back(std::numeric_limits<std::int64_t>::max());
    begin.push_back(0);
    for (std::size_t first = 0; first < last; ++first) {
      const std::size_t rows = steps[last - 1].end - (first == 0 ? 0 : steps[first - 1].end);
      const std::int64_t cost = least[first] + static_cast<std::int64_t>(rows) * steps[last - 1].longest + per_run;
      if (cost < least[last]) least[last] = cost, begin[last] = first;
    }
  }
  std::vector<std::size_t> ends;
  for (std::size_t at = steps.size(); at > 0; at = begin[at]) ends.push_back(steps[at - 1].end);
  std::ranges::reverse(ends);
  return ends;
}

std::vector<std::vector<std::size_t>> groups_of_rows(const LoadedJob& loaded,
                                                     const std::vector<std::vector<std::int32_t>>& rows) {
  const auto length = [&](std::size_t row) { return static_cast<std::int64_t>(rows[row].size()); };
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, length);
  std::vector<std::int64_t> lengths;
  for (const std::size_t row : order) lengths.push_back(length(row));
  std::vector<std::int64_t> distinct = lengths;
  distinct.erase(std::ranges::unique(distinct).begin(), distinct.end());

  const std::int64_t per_plan = loaded.job.cluster.device == Device::cuda ? kPlanOnGpus : kPlanOnProcessors;
  std::vector<std::vector<std::size_t>> groups;
  std::size_t first = 0;
  for (const std::vector<std::int64_t>& run : lengths_of_one_model(loaded, distinct)) {
    const auto end = static_cast<std::size_t>(std::ranges::upper_bound(lengths, run.back()) - lengths.begin());
    std::size_t begin = first;
    for (const std::size_t size : cheapest_runs(std::span(lengths).subspan(first, end - first), per_plan)) {
      groups.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(begin),
                          order.begin() + static_cast<std::ptrdiff_t>(first + size));
      begin = first + size;
    }
    first = end;
  }
  for (std::vector<std::size_t>& group : groups) std::ranges::sort(group);
  std::ranges::sort(groups, {}, [](const auto& group) { return group.front(); });
  return groups;
}

}  // namespace trainer
