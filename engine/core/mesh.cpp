// Numbering of ranks.
#include "engine/core/mesh.h"

#include <algorithm>

namespace trainer {

std::string_view name_of(Axis axis) {
  switch (axis) {
    case Axis::pipeline:
      return "pipeline";
    case Axis::replicate:
      return "replicate";
    case Axis::shard:
      return "shard";
    case Axis::expert:
      return "expert";
    case Axis::context:
      return "context";
    case Axis::tensor:
      return "tensor";
  }
  return "?";
}

int Mesh::world_size() const {
  int product = 1;
  for (int size : sizes_) product *= size;
  return product;
}

int Mesh::group_size(Axes axes) const {
  int product = 1;
  for (Axis axis : axes) product *= size(axis);
  return product;
}

int Mesh::group_size(Axes axes, const std::vector<std::int32_t>& stages) const {
  const int all = group_size(axes);
  return !axes.has(Axis::pipeline) || stages.empty() ? all
                                                     : all / size(Axis::pipeline) * static_cast<int>(stages.size());
}

Axes Mesh::active(Axes axes) const {
  Axes result;
  for (Axis axis : axes)
    if (size(axis) > 1) result = result | axis;
  return result;
}

Coordinates Mesh::coordinates(int rank) const {
  Coordinates result{};
  for (std::size_t axis = kNumAxes; axis-- > 0; rank /= sizes_[axis]) result[axis] = rank % sizes_[axis];
  return result;
}

int Mesh::rank(const Coordinates& coordinates) const {
  int rank = 0;
  for (std::size_t axis = 0; axis < kNumAxes; ++axis) rank = rank * sizes_[axis] + coordinates[axis];
  return rank;
}

int Mesh::index(const Coordinates& coordinates, Axes axes) const {
  int index = 0;
  for (Axis axis : axes) index = index * size(axis) + coordinates[static_cast<std::size_t>(axis)];
  return index;
}

Coordinates Mesh::member(int index, Axes axes) const {
  Coordinates result{};
  for (std::size_t i = kNumAxes; i-- > 0;) {
    if (!axes.has(kAxes[i])) continue;
    result[i] = index % sizes_[i];
    index /= sizes_[i];
  }
  return result;
}

std::vector<int> Mesh::group(int rank, Axes axes, const std::vector<std::int32_t>& stages) const {
  std::vector<int> members{0};
  const Coordinates mine = coordinates(rank);
  for (Axis axis : kAxes) {
    std::vector<int> longer;
    for (int member : members)
      for (int at = 0; at < size(axis); ++at) {
        const bool stage_takes_part =
            axis != Axis::pipeline || stages.empty() || std::find(stages.begin(), stages.end(), at) != stages.end();
        if (axes.has(axis) ? stage_takes_part : at == mine[static_cast<std::size_t>(axis)])
          longer.push_back(member * size(axis) + at);
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

std::string axes_text(const Mesh& mesh, Axes axes) {
  std::string text;
  for (Axis axis : mesh.active(axes)) text += (text.empty() ? "" : "+") + std::string(name_of(axis));
  return text;
}

}  // namespace trainer
