// Parameters are taken apart and put together by the pieces that loading and saving go by (engine/plan/pieces.h).
#include "engine/train/local_units.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/plan/pieces.h"

namespace trainer {
namespace {

// Calls visit(global, local, count) for each run of a tensor that the rank holds.
template <typename Visit>
void for_each_run(const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at, Visit&& visit) {
  for (const Piece& piece : pieces_of(tensor, mesh, at))
    for (std::int64_t r = 0; r < piece.repeat; ++r)
      visit(piece.global + r * piece.global_stride, piece.local + r * piece.local_stride, piece.count);
}

}  // namespace

LocalUnit::LocalUnit(const Unit& unit, const Mesh& mesh, int tensor_rank) : unit_(&unit), mesh_(&mesh) {
  at_[static_cast<std::size_t>(Axis::tensor)] = tensor_rank;
}

bool LocalUnit::puts(const UnitTensor& tensor) const {
  return at_[static_cast<std::size_t>(Axis::tensor)] == 0 || tensor.spec.is_cut(Axis::tensor);
}

std::vector<double> LocalUnit::flat(const WholeTensor& whole) const {
  std::vector<double> flat(elements());
  for (const UnitTensor& tensor : unit_->tensors) {
    const std::vector<double> values = whole(tensor.name);
    CHECK(std::ssize(values) == tensor.spec.whole.elements(), "all of " + tensor.name);
    for_each_run(tensor, *mesh_, at_, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
      std::copy_n(values.begin() + global, count, flat.begin() + local);
    });
  }
  return flat;
}

void LocalUnit::put(const std::vector<double>& flat, const std::string& suffix, TensorValues& into) const {
  for (const UnitTensor& tensor : unit_->tensors) {
    std::vector<double>& values = into[tensor.name + suffix];
    values.resize(static_cast<std::size_t>(tensor.spec.whole.elements()));
    for_each_run(tensor, *mesh_, at_, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
      if (puts(tensor))
        std::copy_n(flat.begin() + local, count, values.begin() + global);
      else
        CHECK(std::equal(flat.begin() + local, flat.begin() + local + count, values.begin() + global),
              "ranks of the tensor axis have " + tensor.name + " alike");
    });
  }
}

double LocalUnit::squares(const std::vector<double>& flat) const {
  double sum = 0;
  for (const UnitTensor& tensor : unit_->tensors)
    if (puts(tensor))
      for (std::int64_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i)
        sum += flat[static_cast<std::size_t>(i)] * flat[static_cast<std::size_t>(i)];
  return sum;
}

std::vector<LocalUnit> local_units(const Plan& plan) {
  std::vector<LocalUnit> units;
  for (const Role& role : plan.roles)
    for (const Unit& unit : role.units) {
      if (!unit.trained()) continue;
      CHECK(unit.stages.empty(), "stages share " + unit.name);
      const bool cut =
          std::ranges::any_of(unit.tensors, [](const UnitTensor& tensor) { return tensor.spec.is_cut(Axis::tensor); });
      for (int rank = 0; rank < (cut ? plan.mesh.size(Axis::tensor) : 1); ++rank)
        units.emplace_back(unit, plan.mesh, rank);
    }
  return units;
}

}  // namespace trainer
