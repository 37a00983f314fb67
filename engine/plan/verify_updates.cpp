// What a step does with gradients once they are there: norm, seed of the loss, update, averages, compression. These ops have no sharding
// rules; what each demands of its operands stands here.
#include <algorithm>
#include <cmath>

#include "engine/plan/verify_flow.h"

namespace trainer {
namespace {

using Kind = Way::Kind;

bool is_one(double value) { return std::abs(value - 1.0) < 1e-9; }

double real_or_one(const Signature& signature, std::string_view name) {
  return signature.attributes.has(name) ? signature.attributes.real(name) : 1.0;
}

// The states of a unit as its optimizer's kernel takes them: each followed by its scales, if it has any.
std::vector<Region> state_operands(const Unit& unit) {
  std::vector<Region> regions;
  for (const Slot& slot : unit.slots) {
    if (slot.kind != Slot::Kind::state) continue;
    const std::int64_t bytes = unit.slice() * size_of(slot.spec.dtype()), block = slot.spec.format.block;
    regions.push_back({slot.region.buffer, slot.region.offset, bytes});
    if (block != 0) regions.push_back({slot.region.buffer, slot.region.offset + aligned(bytes), (unit.slice() + block - 1) / block * size_of(DType::f32)});
  }
  return regions;
}

}  // namespace

// ---- Norm, loss and update -------------------------------------------------------------------------------------------

void Flow::sum_squares(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region& region = region_of(launch.operands[0]);
  const std::int64_t width = size_of(signature.operands[0].dtype), elements = region.bytes / width;
  const std::int64_t first = signature.attributes.integer("first", 0), last = signature.attributes.integer("last", std::int64_t{1} << 62);
  const double scale = real_or_one(signature, "scale");
  const FactRanges pieces = read(i, region);
  Facts result = Facts::all(Way::same(), DType::f64);
  if (active(Axis::pipeline)) result.on(Axis::pipeline) = Way::piece();
  const auto counted = [&](std::int64_t from, std::int64_t to, const Way& way) {
    if (!active(Axis::tensor) || std::max(from, first) >= std::min(to, last) || way.is(Kind::zero)) return;
    const bool once = way.is(Kind::same) ? is_one(scale * plan_.mesh.size(Axis::tensor)) : way.is(Kind::cut) && is_one(scale);
    if (!once) mix(i, Axis::tensor, "does not count once what is " + describe(way));
  };
  if (active(Axis::tensor))
    result.on(Axis::tensor) = Way::partial();
  else if (!is_one(scale))
    report_(i, "does not count its elements once");
  const Affine own = slice_origin(elements, plan_.mesh);
  for (Axis axis : kTokenAxes) {
    if (!active(axis)) continue;
    Way way = Way::zero();
    for (const FactRange& piece : pieces) way = merged(way, piece.facts.on(axis));
    const bool slice = way.is(Kind::slice) && way.base == 0 && launch.origin.along(axis) == own.along(axis);
    if (slice)
      result.on(axis) = Way::partial();
    else if (way.is(Kind::partial) && drifting(axis))
      result.on(axis) = {Kind::drift};
    else if (!way.is(Kind::same) && !way.is(Kind::zero))
      mix(i, axis, "sums squares of what is " + describe(way)), result.on(axis) = {};
  }
  for (const FactRange& piece : pieces) {
    const Way& tensor = piece.facts.on(Axis::tensor);
    if (!tensor.is(Kind::slice))
      counted(piece.first / width, piece.last / width, tensor);
    else
      for (const LayoutEntry& entry : tables_.layouts[static_cast<std::size_t>(tensor.index)])
        counted(entry.first, entry.last, entry.tensor);
  }
  const Operand& squares = launch.operands[1];
  if (access_of(squares) == Access::update) {
    const Facts before = uniform(i, region_of(squares));
    for (Axis axis : kAxes) result.on(axis) = merged(before.on(axis), result.on(axis));
  }
  write(i, region_of(squares), result);
}

// The mean is over all ranks' targets; of ranks that train apart, over their own.
void Flow::seed(std::size_t i, const Launch& launch) {
  const Facts count = uniform(i, region_of(launch.operands[0]));
  need_same(i, region_of(launch.operands[1]), "takes scalars that are");
  Facts result = Facts::all(Way::same(), DType::f32);
  for (Axis axis : kAxes) {
    const Way& way = count.on(axis);
    if (!active(axis) || way.is(Kind::zero) || way.is(drifting(axis) ? Kind::partial : Kind::same)) continue;
    if (axis == Axis::pipeline)
      result.on(axis) = Way::piece();
    else
      mix(i, axis, "takes a count that is " + describe(way));
  }
  write(i, region_of(launch.operands[2]), result);
}

void Flow::update_scalars(std::size_t i, const Launch& launch) {
  static constexpr std::array kWhat{"takes a norm that is", "takes a loss that is", "takes a count that is", "takes scalars that are",
                                    "takes a count of updates that is", "takes a count of good steps that is"};
  const std::size_t operands = role_.good_steps >= 0 ? kWhat.size() : kWhat.size() - 1;
  if (launch.operands.size() != operands) return report_(i, "does not keep the role's loss scale");
  for (std::size_t operand = 0; operand < operands; ++operand) need_same(i, region_of(launch.operands[operand]), kWhat[operand]);
  if (role_.good_steps >= 0)
    for (Axis axis : kBatchAxes)
      if (drifting(axis)) report_(i, "lets each rank choose a loss scale alone");
  write(i, region_of(launch.operands[3]), Facts::all(Way::same(), DType::f32));
  for (std::size_t operand = 4; operand < operands; ++operand) write(i, region_of(launch.operands[operand]), Facts::all(Way::same(), DType::i32));
  ++scalar_updates_;
}

std::optional<std::size_t> Flow::unit_of_master(const Region& master) const {
  const auto found = masters_.find({master.buffer, master.offset});
  if (found == masters_.end() || !(role_.units[found->second].parameters().region == master)) return {};
  return found->second;
}

void Flow::optimizer(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region &master = region_of(launch.operands[0]), &gradient = region_of(launch.operands[1]);
  const std::optional<std::size_t> found = unit_of_master(master);
  if (!found) return report_(i, "updates what is no unit's master weights");
  const std::size_t index = *found;
  const Unit* unit = &role_.units[index];
  const std::int64_t elements = unit->slice(), width = size_of(signature.operands[1].dtype);
  const FlatLayout& layout = tables_.layouts[static_cast<std::size_t>(unit_layouts_[index])];
  const bool sharded = unit->sharded();
  const auto demand = [&](Axis axis, bool holds, const Way& way) {
    if (!holds && active(axis)) mix(i, axis, "updates " + unit->name + " with gradients that are " + describe(way));
  };
  for (const FactRange& piece : read(i, gradient)) {
    const Facts& facts = piece.facts;
    if (facts.dtype && facts.dtype != signature.operands[1].dtype) report_(i, "reads gradients of another dtype");
    demand(Axis::pipeline, fits(stages_way(unit->stages), facts.on(Axis::pipeline)), facts.on(Axis::pipeline));
    const Way& tensor = facts.on(Axis::tensor);
    for (Axis axis : kTokenAxes) {
      const Way& way = facts.on(axis);
      if (sharded && kSliceAxes.has(axis))
        demand(axis, way.is(Kind::zero) || (way.is(Kind::slice) && way.base == 0 && fits(layout, tables_.layouts[static_cast<std::size_t>(way.index)])), way);
      else if (!drifting(axis))
        demand(axis, fits(Way::same(), way), way);
    }
    if (sharded) {
      demand(Axis::tensor, tensor.is(Kind::zero) || tensor.is(Kind::slice), tensor);
      continue;
    }
    // Entries are in order; those before the piece are skipped, since a unit may have thousands of both.
    const std::int64_t begin = piece.first / width, end = piece.last / width;
    auto entry = std::ranges::partition_point(layout, [&](const LayoutEntry& one) { return one.last <= begin; });
    for (; entry != layout.end() && entry->first < end; ++entry)
      if (begin < entry->last) demand(Axis::tensor, fits(entry->tensor, tensor), tensor);
  }
  const Affine own = sharded ? slice_origin(elements, plan_.mesh) : Affine{};
  for (Axis axis : slice_axes())
    if (launch.origin.along(axis) != own.along(axis)) report_(i, "takes another slice than its own");
  std::size_t operand = 2;
  const std::vector<Region> states = state_operands(*unit);
  for (; operand < launch.operands.size() && access_of(launch.operands[operand]) == Access::update; ++operand) {
    const Region& state = region_of(launch.operands[operand]);
    if (operand - 2 >= states.size() || !(states[operand - 2] == state)) report_(i, "updates states that are not those of " + unit->name);
    note_write(i, state);
  }
  if (operand - 2 != states.size()) report_(i, "updates another number of states than " + unit->name + " has");
  for (; operand < launch.operands.size() && access_of(launch.operands[operand]) == Access::read; ++operand)
    need_same(i, region_of(launch.operands[operand]), "takes a scalar that is");
  Facts facts = Facts::all(Way::same(), DType::f32);
  facts.on(Axis::pipeline) = stages_way(unit->stages);
  const auto updated = [&](const Region& region, DType dtype) {
    FactRanges pieces;
    facts.dtype = dtype;
    if (sharded) {
      make_slice(facts, unit_layouts_[index]);
      pieces.push_back({0, region.bytes, facts});
    } else {
      for (const LayoutEntry& entry : layout) {
        facts.on(Axis::tensor) = entry.tensor;
        pieces.push_back({entry.first * size_of(dtype), entry.last * size_of(dtype), facts});
      }
    }
    write(i, region, pieces);
  };
  updated(master, DType::f32);
  if (operand < launch.operands.size()) {
    const Region& working = region_of(launch.operands[operand]);
    if (!(working == unit->updated_working())) report_(i, "writes what is not the working copy of " + unit->name);
    updated(working, unit->compute);
  }
  ++units_[index].updates;
}

// ---- Averaging -------------------------------------------------------------------------------------------------------

// Of flat buffers, where a sum over ranks becomes their mean; of values of a graph by their rule.
void Flow::scale(std::size_t i, const Launch& launch, const Signature& signature) {
  if (launch.micro_batch >= 0) return graph_op(i, launch, signature);
  FactRanges pieces = read(i, region_of(launch.operands[0]));
  for (FactRange& piece : pieces) {
    int ranks = 1;
    for (Axis axis : kBatchAxes) {
      if (!active(axis)) continue;
      Way& way = piece.facts.on(axis);
      if (way.is(Kind::drift)) mix(i, axis, "scales what is " + describe(way));
      if (!way.is(Kind::drift_sum)) continue;
      ranks *= plan_.mesh.size(axis);
      way = Way::same();
    }
    if (ranks > 1 && !is_one(real_or_one(signature, "factor") * ranks)) report_(i, "makes no mean of " + std::to_string(ranks) + " ranks");
  }
  write(i, region_of(launch.operands[1]), pieces);
}

// outer_step, apply_delayed: the last operand that is read is the sum over the ranks.
void Flow::averaged(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region& average = region_of(launch.operands[2]);
  FactRanges pieces = read(i, average);
  int ranks = 1;
  for (Axis axis : kBatchAxes) ranks *= plan_.mesh.size(axis);
  if (!is_one(real_or_one(signature, "factor") * ranks)) report_(i, "makes no mean of " + std::to_string(ranks) + " ranks");
  for (FactRange& piece : pieces)
    for (Axis axis : kBatchAxes) {
      if (!active(axis)) continue;
      Way& way = piece.facts.on(axis);
      if (!way.is(Kind::drift_sum)) mix(i, axis, "takes for a sum what is " + describe(way));
      way = Way::same();
    }
  for (const Operand& operand : launch.operands)
    if (access_of(operand) == Access::read) read(i, region_of(operand));
  for (const Operand& operand : launch.operands)
    if (access_of(operand) != Access::read) write(i, region_of(operand), pieces);
}

// ---- Compression -----------------------------------------------------------------------------------------------------

// Gradient, residual → packet. bf16 keeps its elements; the others are each rank's own, to be understood together.
void Flow::compress(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region &gradient = region_of(launch.operands[0]), &packet = region_of(launch.operands[2]);
  const std::int64_t width = size_of(signature.operands[0].dtype);
  FactRanges pieces = read(i, gradient);
  if (signature.op == Op::compress_bf16) {
    for (FactRange& piece : pieces) {
      piece.first = piece.first / width * size_of(DType::bf16);
      piece.last = piece.last / width * size_of(DType::bf16);
      piece.facts.dtype = DType::bf16;
    }
    return write(i, packet, pieces);
  }
  FlatLayout layout;
  Facts facts = pieces.empty() ? Facts{} : pieces.front().facts;
  for (const FactRange& piece : pieces) {
    append(layout, {piece.first / width, piece.last / width, piece.facts.on(Axis::tensor)});
    facts = merged(facts, piece.facts);
  }
  facts.dtype = signature.operands[2].dtype;
  const bool again = layout.size() == 1 && layout[0].tensor.is(Kind::slice);
  facts.on(Axis::tensor) = {Kind::slice, 0, 1, 1, again ? layout[0].tensor.index : tables_.index_of(layout)};
  for (Axis axis : kTokenAxes)
    if (Way& way = facts.on(axis); way.is(Kind::partial) || way.is(Kind::slice)) way = Way::piece();
  write(i, packet, facts);
}

void Flow::decompress(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region& to = region_of(launch.operands[1]);
  Facts facts = uniform(i, region_of(launch.operands[0]));
  const Way tensor = facts.on(Axis::tensor);
  facts.dtype = signature.operands[1].dtype;
  if (!tensor.is(Kind::slice)) return report_(i, "decompresses what is no compressed gradient");
  if (signature.op == Op::dequantize_sum_int8) {
    bool sharded = !slice_axes().empty() && !facts.on(Axis::replicate).is(Kind::piece);
    for (Axis axis : slice_axes()) sharded = sharded && facts.on(axis).is(Kind::piece);
    for (Axis axis : sharded ? slice_axes() : Axes{}) facts.on(axis) = {Kind::slice, 0, 1, 1, tensor.index};
    return write(i, to, facts);
  }
  for (Axis axis : kTokenAxes)
    if (active(axis) && facts.on(axis).is(Kind::piece)) mix(i, axis, "decompresses what is not gathered");
  FactRanges pieces;
  for (const LayoutEntry& entry : tables_.layouts[static_cast<std::size_t>(tensor.index)]) {
    facts.on(Axis::tensor) = entry.tensor;
    pieces.push_back({entry.first * size_of(*facts.dtype), entry.last * size_of(*facts.dtype), facts});
  }
  if (pieces.back().last != to.bytes) report_(i, "decompresses another number of elements");
  write(i, to, pieces);
}

}  // namespace trainer
