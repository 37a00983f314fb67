// The units of a plan as ranks hold them, on the host, for the simulations of `trainer verify`: of each stage,
// and of each rank along the tensor and expert axes where these cut any of a unit's parameters. What these ranks have
// alike is in the units of all of them, and counts once. A unit that several stages share is one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/train/rewritten.h"

namespace trainer {

class LocalUnit {
 public:
  /// `unit` and `mesh` outlive it. `at`: a rank that holds it; 0 along the axes that cut none of its parameters.
  LocalUnit(const Unit& unit, const Mesh& mesh, const Coordinates& at);

  const Unit& unit() const { return *unit_; }
  /// Whether it is the first of those that together have the unit's parameters.
  bool is_first() const;
  /// The stages that have it.
  std::vector<std::int32_t> stages() const;
  /// The ranks of a stage that sum their gradients of these elements, in the order of the mesh.
  std::vector<int> ranks(std::int32_t stage) const;
  std::size_t elements() const { return static_cast<std::size_t>(unit_->elements); }

  using WholeTensor = std::function<std::vector<double>(const std::string& parameter)>;
  /// Its elements, in the unit's flat order, of whole parameters; padding is 0.
  std::vector<double> flat(const WholeTensor& whole) const;
  /// Puts them back into whole parameters, each by its name and `suffix`. What ranks have alike the first one puts, and
  /// on the others it has to be the same.
  void put(const std::vector<double>& flat, const std::string& suffix, TensorValues& into) const;
  /// Of its elements, without those that the first rank counts.
  double squares(const std::vector<double>& flat) const;

 private:
  bool puts(const UnitTensor& tensor) const;

  const Unit* unit_;
  const Mesh* mesh_;
  Coordinates at_;
};

/// In the order of stages, and in that of ranks.
std::vector<LocalUnit> local_units(const Plan& plan);

}  // namespace trainer
