// Numbering of ranks.
#include "engine/plan/mesh.h"

#include <algorithm>

namespace trainer {

int Mesh::world_size() const {
  int product = 1;
  for (int size : sizes) product *= size;
  return product;
}

int Mesh::group_size(Axes axes) const {
  int product = 1;
  for (Axis axis : kAxes)
    if (axes.has(axis)) product *= size(axis);
  return product;
}

int Mesh::group_size(Axes axes, const std::vector<std::int32_t>& stages) const {
  const int all = group_size(axes);
  return !axes.has(Axis::pipeline) || stages.empty() ? all : all / size(Axis::pipeline) * static_cast<int>(stages.size());
}

Coordinates Mesh::coordinates(int rank) const {
  Coordinates result{};
  for (std::size_t axis = kNumAxes; axis-- > 0; rank /= sizes[axis]) result[axis] = rank % sizes[axis];
  return result;
}

int Mesh::rank(const Coordinates& coordinates) const {
  int rank = 0;
  for (std::size_t axis = 0; axis < kNumAxes; ++axis) rank = rank * sizes[axis] + coordinates[axis];
  return rank;
}

int Mesh::data_rank(int rank) const {
  const Coordinates at = coordinates(rank);
  return at[static_cast<std::size_t>(Axis::replicate)] * size(Axis::shard) + at[static_cast<std::size_t>(Axis::shard)];
}

std::vector<int> Mesh::group(int rank, Axes axes, const std::vector<std::int32_t>& stages) const {
  std::vector<int> members{0};
  const Coordinates mine = coordinates(rank);
  for (Axis axis : kAxes) {
    std::vector<int> longer;
    for (int member : members)
      for (int at = 0; at < size(axis); ++at) {
        const bool stage_takes_part = axis != Axis::pipeline || stages.empty() || std::find(stages.begin(), stages.end(), at) != stages.end();
        if (axes.has(axis) ? stage_takes_part : at == mine[static_cast<std::size_t>(axis)]) longer.push_back(member * size(axis) + at);
      }
    members = std::move(longer);
  }
  return members;
}

std::int64_t Affine::at(const Coordinates& coordinates) const {
  std::int64_t value = base;
  for (std::size_t axis = 0; axis < kNumAxes; ++axis) value += per[axis] * coordinates[axis];
  return value;
}

}  // namespace trainer
