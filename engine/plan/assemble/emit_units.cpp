// What a stage holds of its units: their slots, working copies and gradients.
#include <algorithm>
#include <utility>

#include "engine/core/check.h"
#include "engine/plan/assemble/emitter.h"

namespace trainer {
namespace {

Spec cut(Spec spec, Axes axes) {
  for (Axis axis : axes) spec.place(axis, Placement::shard(0));
  return spec;
}

Spec flat_spec(const Unit& unit, const Format& format, Axes axes) { return cut({format, Shape{unit.elements}}, axes); }

std::int64_t slice_of(const Unit& unit, Axes axes, int ranks) {
  return axes.empty() ? unit.elements : unit.elements / ranks;
}

}  // namespace

void Emitter::make_units(std::vector<Unit> units) {
  role_.units = std::move(units);
  for (std::size_t index = 0; index < role_.units.size(); ++index) {
    Unit& unit = role_.units[index];
    for (std::size_t number = 0; number < unit.tensors.size(); ++number) {
      const UnitTensor& tensor = unit.tensors[number];
      CHECK(places_.try_emplace(tensor.name, ParameterPlace{index, number, tensor.offset, tensor.elements}).second,
            "two units hold " + tensor.name);
    }
    make_slots(unit);
  }
  states_.resize(role_.units.size());
}

Region Emitter::persistent(const Unit& unit, const std::string& name, Category category, const Format& format,
                           std::int64_t elements, Space space) {
  return whole(persistent(unit.name + "." + name, category, bytes_of(format, elements), space));
}

// Masters and states are slices where the strategy says so. An f32 working copy is its own master, or has it inside:
// such a master is off the device only where the working copy is, which is then sliced.
void Emitter::make_slots(Unit& unit) {
  const UnitLayout layout = options_.data->layout();
  const int ranks = options_.mesh.group_size(unit.slice_axes());
  const bool f32 = unit.compute == DType::f32;
  const Axes master_axes = layout.shard_states ? unit.slice_axes() : Axes{},
             working_axes = layout.shard_parameters ? unit.slice_axes() : Axes{};
  Slot working{.kind = Slot::Kind::working,
               .name = "working",
               .spec = flat_spec(unit, unit.compute, working_axes),
               .region = {}};
  Slot master{.kind = Slot::Kind::master,
              .name = "master",
              .spec = flat_spec(unit, DType::f32, master_axes),
              .region = {},
              .saved = true};
  if (working_axes.empty())
    working.region = persistent(unit, f32 && unit.trained() ? "master" : "working", Category::parameters, unit.compute,
                                unit.elements);
  const Space space = working_axes.empty() ? Space::device : options_.offload.parameters;
  if (unit.trained())
    master.region = f32 && working_axes.empty()
                        ? (master_axes.empty() ? working.region : own_slice(working.region, master_axes, ranks))
                        : persistent(unit, "master", Category::parameters, DType::f32,
                                     slice_of(unit, master_axes, ranks), f32 ? space : options_.offload.optimizer);
  if (!working_axes.empty())
    working.region = f32 && unit.trained() ? master.region
                                           : persistent(unit, "slice", Category::parameters, unit.compute,
                                                        slice_of(unit, working_axes, ranks), space);
  working.saved = !unit.trained();
  unit.slots.push_back(working);
  if (!unit.trained()) return;
  unit.slots.push_back(master);
  if (options_.train != nullptr) make_states(unit, layout);
}

// Of the optimizer, of the strategy and of the compression.
void Emitter::make_states(Unit& unit, const UnitLayout& layout) {
  const Axes axes = layout.shard_states ? unit.slice_axes() : Axes{};
  const std::int64_t elements = slice_of(unit, axes, options_.mesh.group_size(axes));
  const auto own_spec = [&](const Format& format) {
    return cut({format, Shape{options_.mesh.group_size(kTokenAxes), unit.elements}}, kTokenAxes);
  };
  for (const StateSpec& state : options_.optimizers[static_cast<std::size_t>(unit.optimizer)].states())
    unit.slots.push_back({.kind = Slot::Kind::state,
                          .name = state.name,
                          .spec = layout.own_states ? own_spec(state.format) : flat_spec(unit, state.format, axes),
                          .region = persistent(unit, state.name, Category::optimizer, state.format, elements,
                                               options_.offload.optimizer),
                          .saved = true});
  for (const std::string& state : layout.states)
    unit.slots.push_back({.kind = Slot::Kind::strategy_state,
                          .name = state,
                          .spec = flat_spec(unit, DType::f32, axes),
                          .region = persistent(unit, state, Category::optimizer, DType::f32, elements),
                          .saved = true});
  if (layout.anchor != Anchor::none) {
    const bool model = layout.anchor == Anchor::model;
    const std::string name = model ? "local" : "anchor";  // as checkpoints call what they have of it: `swap`
    unit.slots.push_back({.kind = Slot::Kind::anchor,
                          .name = name,
                          .spec = model ? own_spec(DType::f32) : flat_spec(unit, DType::f32, axes),
                          .region = persistent(unit, name, Category::optimizer, DType::f32, elements),
                          .saved = model});
  }
  if (options_.compression != nullptr)
    unit.slots.push_back({.kind = Slot::Kind::residual,
                          .name = "residual",
                          .spec = own_spec(DType::f32),
                          .region = persistent(unit, "residual", Category::optimizer, DType::f32, unit.elements),
                          .saved = true});
}

const ParameterPlace& Emitter::place(const std::string& parameter) const {
  const auto found = places_.find(parameter);
  CHECK(found != places_.end(), "no unit of this stage holds " + parameter);
  return found->second;
}

Region Emitter::strategy_copy(const Unit& unit, const std::string& text) {
  if (const Slot* slot = unit.find(Slot::Kind::copy, text)) return slot->region;
  const Slot& master = unit.parameters();
  const Region region = whole(persistent(unit.name + "." + text, Category::optimizer, master.region.bytes));
  role_.units[static_cast<std::size_t>(&unit - role_.units.data())].slots.push_back(
      {.kind = Slot::Kind::copy, .name = text, .spec = Spec(master.spec), .region = region});
  return region;
}

bool Emitter::has_working(const Unit& unit) const { return state(unit).working >= 0; }

void Emitter::set_working(const Unit& unit, BufferId buffer) { state(unit).working = buffer; }

// Its padding must not reach the norm, nor other ranks.
BufferId Emitter::gradient(const Unit& unit) {
  UnitState& now = state(unit);
  if (now.gradient >= 0) return now.gradient;
  const std::int64_t width = size_of(options_.reduce);
  now.gradient = buffer(unit.name + ".gradient", Category::gradients, unit.elements * width);
  std::vector<Slot>& slots = role_.units[static_cast<std::size_t>(&unit - role_.units.data())].slots;
  const auto is_gradient = [](const Slot& one) { return one.kind == Slot::Kind::gradient; };
  auto slot = std::find_if(slots.begin(), slots.end(), is_gradient);
  if (slot == slots.end()) {
    Spec spec(options_.reduce, Shape{unit.elements});
    spec.partial = options_.mesh.active(unit.sum_axes());
    const Slot made{.kind = Slot::Kind::gradient, .name = "gradient", .spec = spec, .region = {}, .persistent = false};
    slot = slots.insert(slot, made);
  }
  slot->region = whole(now.gradient);
  const Because clearing = because(Provenance::Phase::reduce, unit);
  const auto clear = [&](std::int64_t first, std::int64_t last) {
    if (first < last) zero(unit.name + ".padding", {now.gradient, first * width, (last - first) * width});
  };
  std::int64_t end = 0;
  for (const UnitTensor& tensor : unit.tensors) {
    clear(end, tensor.offset);
    end = tensor.offset + tensor.elements;
  }
  clear(end, unit.elements);
  return now.gradient;
}

void Emitter::complete_gradient(const Unit& unit) {
  const Because clearing = because(Provenance::Phase::reduce, unit);
  const BufferId buffer = gradient(unit);
  const std::int64_t width = size_of(options_.reduce);
  for (std::size_t number = 0; number < unit.tensors.size(); ++number) {
    const UnitTensor& tensor = unit.tensors[number];
    if (first_gradient(place(tensor.name))) zero(tensor.name, {buffer, tensor.offset * width, tensor.elements * width});
  }
}

// Whether nothing has been written there yet; from now on something has.
bool Emitter::first_gradient(const ParameterPlace& at) {
  std::vector<bool>& written = states_[at.unit].written;
  written.resize(role_.units[at.unit].tensors.size(), false);
  if (written[at.tensor]) return false;
  written[at.tensor] = true;
  return true;
}

void Emitter::drop_gradient(const Unit& unit) {
  state(unit).gradient = -1;
  state(unit).written.clear();
}

}  // namespace trainer
