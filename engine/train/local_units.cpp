// Parameters are taken apart and put together by the pieces that loading and saving go by (engine/plan/pieces.h).
#include "engine/train/local_units.h"

#include <algorithm>
#include <array>

#include "engine/core/check.h"
#include "engine/plan/pieces.h"

namespace trainer {
namespace {

// The axes that may cut parameters.
constexpr std::array kCutting{Axis::expert, Axis::tensor};

// Calls visit(global, local, count) for each run of a tensor that the rank holds.
template <typename Visit>
void for_each_run(const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at, Visit&& visit) {
  for (const Piece& piece : pieces_of(tensor, mesh, at))
    for (std::int64_t r = 0; r < piece.repeat; ++r)
      visit(piece.global + r * piece.global_stride, piece.local + r * piece.local_stride, piece.count);
}

}  // namespace

LocalUnit::LocalUnit(const Unit& unit, const Mesh& mesh, const Coordinates& at) : unit_(&unit), mesh_(&mesh), at_(at) {}

bool LocalUnit::is_first() const {
  return std::ranges::all_of(kCutting, [&](Axis axis) { return at_[static_cast<std::size_t>(axis)] == 0; });
}

std::vector<std::int32_t> LocalUnit::stages() const {
  return unit_->stages.empty() ? std::vector{at_[static_cast<std::size_t>(Axis::pipeline)]} : unit_->stages;
}

std::vector<int> LocalUnit::ranks(std::int32_t stage) const {
  Coordinates at = at_;
  at[static_cast<std::size_t>(Axis::pipeline)] = stage;
  return mesh_->group(mesh_->rank(at), unit_->sum_axes());
}

bool LocalUnit::puts(const UnitTensor& tensor) const {
  return std::ranges::all_of(
      kCutting, [&](Axis axis) { return at_[static_cast<std::size_t>(axis)] == 0 || tensor.spec.is_cut(axis); });
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
              "ranks have " + tensor.name + " alike");
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
  for (std::size_t stage = 0; stage < plan.roles.size(); ++stage)
    for (const Unit& unit : plan.roles[stage].units) {
      if (!unit.stages.empty() && unit.stages.front() != static_cast<std::int32_t>(stage)) continue;
      Axes cut;
      for (const UnitTensor& tensor : unit.tensors)
        for (const Axis axis : kCutting)
          if (tensor.spec.is_cut(axis)) cut = cut | axis;
      for (int rank = 0; rank < plan.mesh.group_size(cut); ++rank) {
        Coordinates at = plan.mesh.member(rank, cut);
        at[static_cast<std::size_t>(Axis::pipeline)] = static_cast<int>(stage);
        units.emplace_back(unit, plan.mesh, at);
      }
    }
  return units;
}

}  // namespace trainer
