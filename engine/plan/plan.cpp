// Names and look-ups of plans.
#include "engine/plan/plan.h"

#include <algorithm>

#include "engine/core/check.h"

namespace trainer {

std::string_view name_of(Category category) {
  switch (category) {
    case Category::parameters:
      return "parameters";
    case Category::gradients:
      return "gradients";
    case Category::optimizer:
      return "optimizer";
    case Category::activations:
      return "activations";
    case Category::communication:
      return "communication";
    case Category::workspace:
      return "workspace";
    case Category::inputs:
      return "inputs";
  }
  return "?";
}

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return "all_reduce";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::all_gather:
      return "all_gather";
    case CollectiveKind::all_to_all:
      return "all_to_all";
    case CollectiveKind::shift:
      return "shift";
  }
  return "?";
}

std::string_view name_of(Stream stream) {
  switch (stream) {
    case Stream::compute:
      return "compute";
    case Stream::communication:
      return "communication";
    case Stream::copy:
      return "copy";
    case Stream::background:
      return "background";
    case Stream::tensor:
      return "tensor_parallel";  // in a plan's text "tensor" begins another line
    case Stream::fetch:
      return "fetch";
    case Stream::store:
      return "store";
    case Stream::host:
      return "host";
  }
  return "?";
}

std::string_view name_of(Space space) {
  switch (space) {
    case Space::device:
      return "device";
    case Space::host:
      return "host";
    case Space::disk:
      return "disk";
  }
  return "?";
}

std::string_view name_of(Provenance::Phase phase) {
  switch (phase) {
    case Provenance::Phase::load:
      return "load";
    case Provenance::Phase::forward:
      return "forward";
    case Provenance::Phase::backward:
      return "backward";
    case Provenance::Phase::backward_input:
      return "backward_input";
    case Provenance::Phase::backward_weight:
      return "backward_weight";
    case Provenance::Phase::gather:
      return "gather";
    case Provenance::Phase::transfer:
      return "transfer";
    case Provenance::Phase::reduce:
      return "reduce";
    case Provenance::Phase::norm:
      return "norm";
    case Provenance::Phase::update:
      return "update";
    case Provenance::Phase::average:
      return "average";
    case Provenance::Phase::report:
      return "report";
  }
  return "?";
}

std::string_view name_of(Slot::Kind kind) {
  switch (kind) {
    case Slot::Kind::master:
      return "master";
    case Slot::Kind::working:
      return "working";
    case Slot::Kind::state:
      return "state";
    case Slot::Kind::strategy_state:
      return "strategy_state";
    case Slot::Kind::residual:
      return "residual";
    case Slot::Kind::copy:
      return "copy";
    case Slot::Kind::anchor:
      return "anchor";
    case Slot::Kind::gradient:
      return "gradient";
  }
  return "?";
}

std::string_view name_of(ProgramKind kind) {
  switch (kind) {
    case ProgramKind::step:
      return "step";
    case ProgramKind::step_averaging:
      return "step_averaging";
    case ProgramKind::evaluate:
      return "evaluate";
    case ProgramKind::prompt:
      return "prompt";
    case ProgramKind::sample:
      return "sample";
    case ProgramKind::average:
      return "average";
    case ProgramKind::settle:
      return "settle";
    case ProgramKind::swap:
      return "swap";
    case ProgramKind::refresh:
      return "refresh";
  }
  return "?";
}

std::int64_t bytes_of(const Format& format, std::int64_t elements) {
  const std::int64_t bytes = elements * size_of(format.element);
  if (format.block == 0) return bytes;
  return aligned(bytes) + (elements + format.block - 1) / format.block * size_of(DType::f32);
}

const Slot* Unit::find(Slot::Kind kind, std::string_view slot_name) const {
  for (const Slot& slot : slots)
    if (slot.kind == kind && (slot_name.empty() || slot.name == slot_name)) return &slot;
  return nullptr;
}

const Slot& Unit::working() const {
  const Slot* slot = find(Slot::Kind::working);
  CHECK(slot != nullptr, "every unit has a working copy: " + name);
  return *slot;
}

const Slot& Unit::parameters() const {
  const Slot* master = find(Slot::Kind::master);
  return master != nullptr ? *master : working();
}

Region Unit::updated_working() const {
  const Slot &master = parameters(), &copy = working();
  if (compute == DType::f32 || copy.sliced()) return compute == DType::f32 ? master.region : copy.region;
  return own_slice(copy.region, axes_of(master.spec), static_cast<int>(elements / slice()));
}

std::int64_t Unit::slice() const {
  const Slot& slot = parameters();
  return slot.region.bytes / size_of(slot.spec.dtype());
}

Affine origin_over(Axes axes, std::int64_t step, const Mesh& mesh) {
  Affine origin;
  for (std::size_t i = kAxes.size(); i-- > 0;) {
    if (!axes.has(kAxes[i])) continue;
    origin.along(kAxes[i]) = step;
    step *= mesh.size(kAxes[i]);
  }
  return origin;
}

Affine slice_origin(const Unit& unit, std::int64_t elements, const Mesh& mesh) {
  return origin_over(unit.slice_axes(), elements, mesh);
}

std::vector<UnitRun> runs_of(const Unit& unit, const Mesh& mesh) {
  const bool slices = mesh.size(Axis::expert) > 1 && unit.sharded();
  const Axes graph_axes = mesh.active(slices ? Axes::of(Axis::tensor) : Axis::tensor | Axis::expert);
  std::vector<UnitRun> runs;
  const auto add = [&](std::int64_t last, Axes alike, Axes partial) {
    const std::int64_t first = runs.empty() ? 0 : runs.back().elements.last;
    if (first == last) return;
    if (!runs.empty() && runs.back().alike == alike && runs.back().partial == partial)
      runs.back().elements.last = last;
    else
      runs.push_back({{first, last}, alike, partial});
  };
  for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
    const UnitTensor& tensor = unit.tensors[i];
    const bool last = i + 1 == unit.tensors.size();
    const std::int64_t end =
        last ? std::min(unit.elements, tensor.offset + aligned_elements(tensor.elements)) : unit.tensors[i + 1].offset;
    add(end, graph_axes - axes_of(tensor.spec), tensor.partial);
  }
  add(unit.elements, {}, {});
  return runs;
}

std::string_view name_of(Field::Kind kind) {
  switch (kind) {
    case Field::Kind::batch:
      return "batch";
    case Field::Kind::scalar:
      return "scalar";
    case Field::Kind::result:
      return "result";
  }
  return "?";
}

const Program* Role::program(ProgramKind kind, int part) const {
  const std::int32_t index = program_index(kind, part);
  return index < 0 ? nullptr : &programs[static_cast<std::size_t>(index)];
}

std::int32_t Role::program_index(ProgramKind kind, int part) const {
  for (std::size_t i = 0; i < programs.size(); ++i)
    if (programs[i].kind == kind && part-- == 0) return static_cast<std::int32_t>(i);
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
