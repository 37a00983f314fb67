// How a step updates its units by their optimizers' ops, or makes working copies of masters alone: on all of a rank's
// slice, or chunk by chunk where some of it is kept elsewhere (staged_units.h).
#include <algorithm>
#include <functional>
#include <utility>

#include "engine/core/check.h"
#include "engine/ops/op_def.h"
#include "engine/plan/assemble/emitted_step.h"
#include "engine/plan/update_operands.h"

namespace trainer {
namespace {

using For = Provenance::Phase;

constexpr std::int64_t kWidth = size_of(DType::f32);  // of updates and rates

bool is_whole(const UpdateOp& op) { return definition(op.op).update->whole; }

// How often ops on slices follow ops on whole matrices, or the other way round.
std::ptrdiff_t changes(std::span<const UpdateOp> ops) {
  std::ptrdiff_t count = 0;
  for (std::size_t i = 1; i < ops.size(); ++i) count += is_whole(ops[i]) != is_whole(ops[i - 1]);
  return count;
}

// A rank's slice of a unit all at once, where it is.
StagedUnits::Chunk whole_slice(const Unit& unit) { return {&unit, {0, unit.slice()}}; }

}  // namespace

void EmittedStep::renew_working(const Unit& unit) {
  const Region master = unit.parameters().region, working = unit.updated_working();
  if (!unit.trained() || working == master) return;
  const auto why = emit_.because(emit_.why().phase, unit);
  const auto cast = [&](const StagedUnits::Chunk& chunk) {
    const ElementRange& of = chunk.elements;
    emit_.launch(unit.name, {Op::cast, {}, {flat(DType::f32, of.size()), flat(unit.compute, of.size())}},
                 {Read{chunk.here(part_of(master, of, kWidth))},
                  Write{chunk.here(part_of(working, of, size_of(unit.compute)))}});
  };
  masters_.has(unit) ? masters_.for_each_chunk(unit, cast) : cast(whole_slice(unit));
}

// Element by element: an op takes any part of a slice.
void EmittedStep::update_in_chunks(const Unit& unit) {
  const std::vector<UpdateOp>& ops = options_.optimizers[static_cast<std::size_t>(unit.optimizer)].ops;
  CHECK(ops.size() == 1 && !is_whole(ops.front()), "what is updated in chunks is updated by one op");
  UnitUpdate one{&unit, ops};
  if (staged_.space() == Space::host && !std::exchange(gradients_leave_, true))  // all are complete by now
    for (const Unit& each : role_.units)
      if (each.trained()) staged_.add_gradient(each, gradient(each), size_of(options_.reduce));
  staged_.for_each_chunk(unit, [&](const StagedUnits::Chunk& chunk) {
    const auto why = emit_.because(For::update, unit);
    launch(one, ops.front(), chunk);
  });
}

// Where an update finds scalars that are made on the device. What waits for them to leave is issued behind the first
// gradients, which need not wait.
Region EmittedStep::for_update(const Region& scalars) {
  if (staged_.space() == Space::device) return scalars;
  const auto [at, added] = scalars_on_host_.try_emplace(scalars.buffer, -1);
  if (added) {
    const Region all = emit_.whole(scalars.buffer);
    const std::string text = role_.name(role_.buffer(scalars.buffer).name) + ".staged";
    at->second = emit_.persistent(text, Category::inputs, all.bytes, Space::host);
    const auto why = emit_.because({.phase = For::update});
    emit_.issue(Stream::store, Move{emit_.name(text), {all}, {emit_.whole(at->second)}});
  }
  return {at->second, scalars.offset, scalars.bytes};
}

// Before ops on whole matrices what each rank has of the update is gathered, and behind them it takes the same way
// back. Where ranks share such work, units run ahead of each other, by one at each such change of their lists: while
// the matrices of one are worked on, the update of the next one is gathered, and that of the one before scattered.
void EmittedStep::optimizer(const Unit& unit) {
  CHECK(gradient(unit).bytes == unit.slice() * size_of(options_.reduce),
        "the gradients of " + unit.name + " are cut as its states are");
  if (staged_.has(unit)) return update_in_chunks(unit);
  const auto list_of = [&](const Unit& one) -> std::span<const UpdateOp> {
    return options_.optimizers[static_cast<std::size_t>(one.optimizer)].ops;
  };
  if (updates_.empty()) {
    for (const Unit& one : role_.units)
      if (one.trained()) updates_.push_back({&one, list_of(one)});
    std::ranges::stable_sort(updates_, std::greater{}, [](const UnitUpdate& one) { return changes(one.rest); });
  }
  const auto at = std::ranges::find(updates_, &unit, &UnitUpdate::unit);
  for (auto ahead = matrix_axes(unit, options_.mesh).empty() ? 0 : changes(list_of(unit)); ahead >= 0; --ahead)
    for (auto one = at; one != updates_.end() && one - at <= ahead; ++one)
      while (!one->rest.empty() && changes(one->rest) >= ahead) next_op(*one);
}

void EmittedStep::next_op(UnitUpdate& one) {
  const auto why = emit_.because(For::update, *one.unit);
  const UpdateOp& op = one.rest.front();
  launch(one, op, whole_slice(*one.unit));
  one.rest = one.rest.subspan(1);
  if (one.rest.empty() || is_whole(op) == is_whole(one.rest.front())) return;
  is_whole(op) ? scatter(one) : gather(one);
}

// Each operand as the op's declaration says.
std::vector<std::pair<TensorDesc, Operand>> EmittedStep::operands_of(UnitUpdate& one, const UpdateOp& op,
                                                                     const StagedUnits::Chunk& chunk) {
  using Of = UpdateDef::Operand;
  const Unit& unit = *one.unit;
  const UpdateDef& def = *definition(op.op).update;
  const Region master = unit.parameters().region, working = unit.updated_working();
  const std::int64_t elements = chunk.elements.size();
  TensorDesc update = flat(DType::f32, elements);
  if (def.whole) update.shape = Shape{one.update.bytes / kWidth / unit.elements, unit.elements};
  std::vector<std::pair<TensorDesc, Operand>> operands;
  for (const Of of : def.operands) {
    switch (of) {
      case Of::master:
        operands.emplace_back(flat(DType::f32, elements), Update{chunk.here(part_of(master, chunk.elements, kWidth))});
        break;
      case Of::gradient:
        operands.emplace_back(flat(options_.reduce, elements),
                              Read{chunk.here(part_of(gradient(unit), chunk.elements, size_of(options_.reduce)))});
        break;
      case Of::states:
        for (const StateSpec& state : op.states)
          for (const auto& [tensor, region] : state_operands(unit, state.name, chunk.elements))
            operands.emplace_back(tensor, Update{chunk.here(region)});
        break;
      case Of::made:
        operands.emplace_back(update, Write{one.update = update_buffer(unit, elements)});
        break;
      case Of::changed:
        operands.emplace_back(update, Update{one.update});
        break;
      case Of::taken:
        operands.emplace_back(update, Read{one.update});
        break;
      case Of::rate:
        operands.emplace_back(scalar(DType::f32), Read{for_update({lr, unit.optimizer * kWidth, kWidth})});
        break;
      case Of::scalars:
        operands.emplace_back(flat(DType::f32, 4), Read{for_update(emit_.whole(role_.scalars))});
        break;
      case Of::applied:
        operands.emplace_back(scalar(DType::i32), Read{for_update(emit_.whole(role_.applied))});
        break;
      case Of::working:
        if (!(working == master))
          operands.emplace_back(flat(unit.compute, elements),
                                Write{chunk.here(part_of(working, chunk.elements, size_of(unit.compute)))});
        break;
    }
  }
  return operands;
}

void EmittedStep::launch(UnitUpdate& one, const UpdateOp& op, const StagedUnits::Chunk& chunk) {
  const Unit& unit = *one.unit;
  const UpdateDef& def = *definition(op.op).update;
  Signature signature{op.op, op.attributes, {}};
  std::vector<Operand> operands;
  for (const auto& [tensor, operand] : operands_of(one, op, chunk)) {
    signature.operands.push_back(tensor);
    operands.push_back(operand);
  }
  Affine origin;
  if (def.has(UpdateDef::Operand::master)) {
    signature.attributes.set("decay_elements", unit.decay_elements);
    signature.attributes.set("working", !(unit.updated_working() == unit.parameters().region));
    if (unit.sharded()) origin = slice_origin(unit, unit.slice(), options_.mesh);
    origin.base += chunk.elements.first;
  }
  if (def.whole) {
    const Axes axes = matrix_axes(unit, options_.mesh);
    share_out(unit, options_.mesh, signature, work_[axes.mask]);
    origin = origin_over(axes, 1, options_.mesh);
  }
  if (staged_.space() == Space::host)
    emit_.launch_on_host(unit.name, signature, std::move(operands), origin);
  else
    emit_.launch(unit.name, signature, std::move(operands), origin);
}

Region EmittedStep::update_buffer(const Unit& unit, std::int64_t elements) {
  return emit_.whole(emit_.buffer(unit.name + ".update", Category::optimizer, elements * kWidth));
}

void EmittedStep::gather(UnitUpdate& one) {
  const Axes axes = matrix_axes(*one.unit, options_.mesh);
  for (const Axes over : {axes & kTokenAxes, axes & Axes::of(Axis::tensor)}) {
    if (over.empty()) continue;
    const Region whole = update_buffer(*one.unit, one.update.bytes / kWidth * options_.mesh.group_size(over));
    emit_.collective(one.unit->name + ".update", CollectiveKind::all_gather, DType::f32, over, one.update, whole);
    one.gathers.emplace_back(over, one.update);
    one.update = whole;
  }
}

// Sums in which all but one term are 0.
void EmittedStep::scatter(UnitUpdate& one) {
  for (; !one.gathers.empty(); one.gathers.pop_back()) {
    const auto& [over, slice] = one.gathers.back();
    emit_.collective(one.unit->name + ".update", CollectiveKind::reduce_scatter, DType::f32, over, one.update, slice);
    one.update = slice;
  }
}

}  // namespace trainer
