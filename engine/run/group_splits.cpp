// Two groups are the same if they have the same ranks here: axes of length 1 and lists of all stages are ignored.
#include "engine/run/group_splits.h"

#include <algorithm>
#include <tuple>

namespace trainer {
namespace {

auto order_of(const GroupSplit& split) { return std::tie(split.axes.mask, split.stages, split.stream); }

}  // namespace

std::optional<GroupSplit> split_of(const Mesh& mesh, const Collective& collective, Stream stream) {
  if (mesh.group_size(collective.axes, collective.stages) == 1) return std::nullopt;
  GroupSplit split{{}, {}, stream};
  for (Axis axis : kAxes)
    if (collective.axes.has(axis) && mesh.size(axis) > 1) split.axes = split.axes | Axes::of(axis);
  const bool all = collective.stages.size() == static_cast<std::size_t>(mesh.size(Axis::pipeline));
  if (split.axes.has(Axis::pipeline) && !all) split.stages = collective.stages;
  return split;
}

std::vector<GroupSplit> group_splits(const Plan& plan) {
  std::vector<GroupSplit> splits;
  for (const Role& role : plan.roles)
    for (const Program& program : role.programs)
      for (const Issued& issued : program.instructions)
        if (const auto* collective = std::get_if<Collective>(&issued.instruction))
          if (std::optional<GroupSplit> split = split_of(plan.mesh, *collective, issued.stream);
              split && std::find(splits.begin(), splits.end(), *split) == splits.end())
            splits.push_back(std::move(*split));
  std::sort(splits.begin(), splits.end(),
            [](const GroupSplit& a, const GroupSplit& b) { return order_of(a) < order_of(b); });
  return splits;
}

SplitPart part_of(const Mesh& mesh, const GroupSplit& split, int rank) {
  const std::vector<int> members = mesh.group(rank, split.axes, split.stages);
  if (!std::binary_search(members.begin(), members.end(), rank)) return {};
  return {members.front(), rank};
}

}  // namespace trainer
