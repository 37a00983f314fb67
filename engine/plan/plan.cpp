// Names and look-ups of plans.
#include "engine/plan/plan.h"

#include "engine/core/check.h"

namespace trainer {

std::string_view name_of(Category category) {
  switch (category) {
    case Category::parameters: return "parameters";
    case Category::gradients: return "gradients";
    case Category::optimizer: return "optimizer";
    case Category::activations: return "activations";
    case Category::communication: return "communication";
    case Category::workspace: return "workspace";
    case Category::inputs: return "inputs";
  }
  return "?";
}

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce: return "all_reduce";
    case CollectiveKind::reduce_scatter: return "reduce_scatter";
    case CollectiveKind::all_gather: return "all_gather";
    case CollectiveKind::all_to_all: return "all_to_all";
    case CollectiveKind::broadcast: return "broadcast";
  }
  return "?";
}

std::string_view name_of(Stream stream) {
  switch (stream) {
    case Stream::compute: return "compute";
    case Stream::communication: return "communication";
    case Stream::copy: return "copy";
    case Stream::background: return "background";
    case Stream::tensor: return "tensor_parallel";  // in a plan's text "tensor" begins another line
  }
  return "?";
}

std::string_view name_of(Provenance::Phase phase) {
  switch (phase) {
    case Provenance::Phase::load: return "load";
    case Provenance::Phase::forward: return "forward";
    case Provenance::Phase::backward: return "backward";
    case Provenance::Phase::backward_input: return "backward_input";
    case Provenance::Phase::backward_weight: return "backward_weight";
    case Provenance::Phase::gather: return "gather";
    case Provenance::Phase::transfer: return "transfer";
    case Provenance::Phase::reduce: return "reduce";
    case Provenance::Phase::norm: return "norm";
    case Provenance::Phase::update: return "update";
    case Provenance::Phase::average: return "average";
    case Provenance::Phase::report: return "report";
  }
  return "?";
}

const Program* Role::program(std::string_view program_name) const {
  const std::int32_t index = program_index(program_name);
  return index < 0 ? nullptr : &programs[static_cast<std::size_t>(index)];
}

std::int32_t Role::program_index(std::string_view program_name) const {
  for (std::size_t i = 0; i < programs.size(); ++i)
    if (programs[i].name == program_name) return static_cast<std::int32_t>(i);
  return -1;
}

std::int32_t Role::field_index(std::string_view field_name) const {
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (fields[i].name == field_name) return static_cast<std::int32_t>(i);
  return -1;
}

const Role& Plan::role_of(int rank) const {
  const auto stage = static_cast<std::size_t>(mesh.coordinates(rank)[static_cast<std::size_t>(Axis::pipeline)]);
  CHECK(stage < roles.size(), "a rank without a role");
  return roles[stage];
}

}  // namespace trainer
