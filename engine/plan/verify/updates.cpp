// What a step does with gradients once they are there: norm, seed of the loss, update, averages, compression. These ops have no sharding
// rules; what each demands of its operands stands here.
#include <algorithm>
#include <cmath>

#include "engine/plan/muon.h"
#include "engine/plan/verify/flow.h"

namespace trainer {
namespace {

using Note = Held::Note;
using Content = Facts::Content;

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
  const Region &region = region_of(launch.operands[0]), &squares = region_of(launch.operands[1]);
  const std::int64_t width = size_of(signature.operands[0].dtype);
  const std::int64_t first = signature.attributes.integer("first", 0), last = signature.attributes.integer("last", std::int64_t{1} << 62);
  const double scale = real_or_one(signature, "scale");
  const FactRanges pieces = read(region);
  Facts result = Facts::all(Held::same(), DType::f64);
  const Facts all = merged(pieces);
  result.on(Axis::pipeline) = Held::partial();
  const Affine own = slice_origin(region.bytes / width, plan_.mesh);
  for (Axis axis : plan_.mesh.active(kTokenAxes)) {
    const Held& held = all.on(axis);
    if (all.layout >= 0 && held == Held(Placement::shard(0)) && all.base == 0 && launch.origin.along(axis) == own.along(axis))
      result.on(axis) = Held::partial();
    else if (held == Held::partial() && drifting(axis))
      result.on(axis) = Held::version();
    else if (!held.is(Note::zero) && held != Held::same())
      mix(i, axis, "sums squares of what is " + all.along(axis)), result.on(axis) = {};
  }
  if (!active(Axis::tensor) && !is_one(scale)) report_(i, "does not count its elements once");
  if (active(Axis::tensor)) result.on(Axis::tensor) = Held::partial();
  for (const FactRange& piece : active(Axis::tensor) ? all.layout >= 0 ? tables_.unpacked(all, width) : pieces : FactRanges{}) {
    const Held& held = piece.facts.on(Axis::tensor);
    const bool cut = held.is(Note::none) && held.placement.is_shard();
    const bool once = held == Held::same() ? is_one(scale * plan_.mesh.size(Axis::tensor)) : cut && is_one(scale);
    if (std::max(piece.first / width, first) < std::min(piece.last / width, last) && !held.is(Note::zero) && !once)
      mix(i, Axis::tensor, "does not count once what is " + piece.facts.along(Axis::tensor));
  }
  if (access_of(launch.operands[1]) == Access::update) result = merged(uniform(squares), result);
  write(i, squares, result);
}

// The mean is over all ranks' targets; of ranks that train apart, over their own.
void Flow::seed(std::size_t i, const Launch& launch) {
  const Facts count = uniform(region_of(launch.operands[0]));
  need_same(i, region_of(launch.operands[1]), "takes scalars that are");
  Facts result = Facts::all(Held::same(), DType::f32);
  for (Axis axis : kAxes) {
    const Held& held = count.on(axis);
    if (!active(axis) || held.is(Note::zero) || held == (drifting(axis) ? Held::partial() : Held::same())) continue;
    if (axis == Axis::pipeline)
      result.on(axis) = Held::partial();
    else
      mix(i, axis, "takes a count that is " + count.along(axis));
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
  write(i, region_of(launch.operands[3]), Facts::all(Held::same(), DType::f32));
  for (std::size_t operand = 4; operand < operands; ++operand) write(i, region_of(launch.operands[operand]), Facts::all(Held::same(), DType::i32));
  ++scalar_updates_;
}

void Flow::optimizer(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region& master = region_of(launch.operands[0]);
  const auto found = masters_.find({master.buffer, master.offset});
  if (found == masters_.end() || !(role_.units[found->second].parameters().region == master))
    return report_(i, "updates what is no unit's master weights");
  const std::size_t index = found->second;
  const Unit& unit = role_.units[index];
  const bool muon = signature.op == Op::muon;
  if (muon)
    take_update(i, index, region_of(launch.operands[1]));
  else
    take_gradient(i, index, region_of(launch.operands[1]), signature.operands[1].dtype);
  const Affine own = unit.sharded() ? slice_origin(unit.slice(), plan_.mesh) : Affine{};
  if (!(launch.origin == own)) report_(i, "takes another slice than its own");
  const std::size_t rate = muon ? 2 : take_states(i, index, launch, 2), last = take_scalars(i, launch, rate);
  if (rate == last || region_of(launch.operands[rate]).offset != unit.optimizer * size_of(DType::f32))
    report_(i, "takes the rate of another optimizer than that of " + unit.name);
  write(i, master, lies(index, unit.slice(), DType::f32));
  if (last < launch.operands.size()) {
    const Region& working = region_of(launch.operands[last]);
    if (!(working == unit.updated_working())) report_(i, "writes what is not the working copy of " + unit.name);
    write(i, working, lies(index, unit.slice(), unit.compute));
  }
  ++units_[index].updates;
}

// Gradients lie as the master does; a stage's own are its part of those of all, and ranks that train apart need not have summed theirs.
void Flow::take_gradient(std::size_t i, std::size_t unit, const Region& gradient, DType dtype) {
  const bool own = role_.units[unit].stages.empty();
  const FactRanges due = lies(unit, role_.units[unit].slice(), dtype), given = read(gradient);
  const auto foreign = [&](const FactRange& piece) { return piece.facts.dtype && piece.facts.dtype != dtype; };
  if (std::ranges::any_of(given, foreign)) report_(i, "reads gradients of another dtype");
  if (std::ranges::any_of(given, [](const FactRange& piece) { return piece.facts.content != Content::values; })) report_(i, "takes for gradients what is none");
  auto expected = due.begin();  // both ascend, and a unit may have thousands of either
  for (const FactRange& piece : given)
    for (std::int64_t at = piece.first; at < piece.last && expected != due.end(); at = std::min(piece.last, expected->last)) {
      while (expected != due.end() && expected->last <= at) ++expected;
      if (expected == due.end()) break;
      for (Axis axis : kAxes) {
        const bool part = axis == Axis::pipeline && own && piece.facts.on(axis) == Held::partial();
        const bool apart = drifting(axis) && expected->facts.on(axis) == Held::same();
        if (active(axis) && !part && !apart && !tables_.fits(expected->facts, piece.facts, axis))
          mix(i, axis, "updates " + role_.units[unit].name + " with gradients that are " + piece.facts.along(axis));
      }
    }
}

std::size_t Flow::take_states(std::size_t i, std::size_t index, const Launch& launch, std::size_t operand) {
  const std::vector<Region> states = state_operands(role_.units[index]);
  std::size_t count = 0;
  for (; operand < launch.operands.size() && access_of(launch.operands[operand]) == Access::update; ++operand, ++count) {
    const Region& state = region_of(launch.operands[operand]);
    if (count >= states.size() || !(states[count] == state)) report_(i, "updates states that are not those of " + role_.units[index].name);
    note_write(i, state);
  }
  if (count != states.size()) report_(i, "updates another number of states than " + role_.units[index].name + " has");
  return operand;
}

std::size_t Flow::take_scalars(std::size_t i, const Launch& launch, std::size_t operand) {
  for (; operand < launch.operands.size() && access_of(launch.operands[operand]) == Access::read; ++operand)
    need_same(i, region_of(launch.operands[operand]), "takes a scalar that is");
  return operand;
}

// ---- Muon --------------------------------------------------------------------------------------------------------------

// A gradient moves the momentum, which makes what is to be orthogonalized.
void Flow::muon_momentum(std::size_t i, const Launch& launch, const Signature& signature) {
  const std::optional<std::size_t> index = muon_unit(i);
  if (!index) return;
  const Unit& unit = role_.units[*index];
  take_gradient(i, *index, region_of(launch.operands[0]), signature.operands[0].dtype);
  const std::size_t last = take_scalars(i, launch, take_states(i, *index, launch, 1));
  ++units_[*index].momenta;
  if (last + 1 != launch.operands.size() || signature.operands[last].shape.elements() != unit.slice()) return report_(i, "makes no update of " + unit.name);
  Facts facts = flat(*index, unit.slice(), DType::f32);
  facts.content = Content::momentum;
  write(i, region_of(launch.operands[last]), facts);
}

// Whole matrices, which all ranks have alike → the sum over the owners is the update of all of them.
void Flow::muon_orthogonalize(std::size_t i, const Launch& launch, const Signature& signature) {
  const std::optional<std::size_t> index = muon_unit(i);
  if (!index) return;
  const Unit& unit = role_.units[*index];
  const std::int64_t parts = signature.operands[0].shape[0];
  Facts due = flat(*index, unit.elements, DType::f32), is = uniform(region_of(launch.operands[0]));
  due.content = Content::momentum;
  if (parts > 1) due.on(Axis::tensor) = {Placement::replicate(), Note::stacked};
  for (Axis axis : kAxes)
    if (active(axis) && !tables_.fits(due, is, axis)) mix(i, axis, "orthogonalizes what is " + is.along(axis));
  if (is.content != Content::momentum) report_(i, "orthogonalizes what is no momentum");
  need_same(i, region_of(launch.operands[1]), "takes scalars that are");
  Axes owners;
  for (Axis axis : kAxes)
    if (launch.origin.along(axis) != 0) owners = owners | axis;
  if (!(launch.origin == origin_over(owners, 1, plan_.mesh))) report_(i, "does not give each rank matrices of its own");
  std::vector<MuonMatrix> matrices = muon_matrices(signature.attributes.text("matrices"));
  for (MuonMatrix& matrix : matrices) {
    if (matrix.owner >= plan_.mesh.group_size(owners)) report_(i, "leaves a matrix to nobody");
    matrix.owner = 0;
  }
  const bool whole = parts == (owners.has(Axis::tensor) ? plan_.mesh.size(Axis::tensor) : 1);
  if (!whole || signature.operands[0].shape[1] != unit.elements || matrices != matrices_of(unit, plan_.mesh))
    report_(i, "orthogonalizes other matrices than those of " + unit.name);
  is.content = Content::update;
  for (Axis axis : owners) is.on(axis) = {Placement::partial(), is.on(axis).note};
  write(i, region_of(launch.operands[0]), is);
}

// The unit that an instruction says it works for. What it says is checked against what the instruction works on.
std::optional<std::size_t> Flow::muon_unit(std::size_t i) {
  const std::int32_t unit = program_.instructions[i].why.unit;
  if (unit >= 0 && static_cast<std::size_t>(unit) < role_.units.size() && role_.units[static_cast<std::size_t>(unit)].trained()) return static_cast<std::size_t>(unit);
  report_(i, "works for no unit");
  return std::nullopt;
}

void Flow::take_update(std::size_t i, std::size_t index, const Region& region) {
  const Unit& unit = role_.units[index];
  Facts due = flat(index, unit.slice(), DType::f32);
  const Facts is = uniform(region);
  due.content = Content::update;
  for (Axis axis : kAxes)
    if (active(axis) && !tables_.fits(due, is, axis)) mix(i, axis, "updates " + unit.name + " with what is " + is.along(axis));
  if (is.content != Content::update) report_(i, "updates " + unit.name + " with what Muon has not orthogonalized");
}

// ---- Averaging -------------------------------------------------------------------------------------------------------

// Sums of what ranks have drifted apart about become its mean.
FactRanges Flow::mean(std::size_t i, FactRanges sums, const Signature& signature) {
  for (FactRange& piece : sums) {
    double ranks = 1;
    for (Axis axis : plan_.mesh.active(kBatchAxes)) {
      Held& held = piece.facts.on(axis);
      if (held == Held::version()) mix(i, axis, "takes for a sum what is " + piece.facts.along(axis));
      if (!held.is(Note::drifted)) continue;
      ranks *= plan_.mesh.size(axis);
      held = Held::same();
    }
    if (ranks > 1 && !is_one(real_or_one(signature, "factor") * ranks)) report_(i, "makes no mean of " + std::to_string(std::llround(ranks)) + " ranks");
  }
  return sums;
}

// Of flat buffers; of values of a graph by their rule.
void Flow::scale(std::size_t i, const Launch& launch, const Signature& signature) {
  if (is_pass(program_.instructions[i].why.phase)) return graph_op(i, launch, signature);
  write(i, region_of(launch.operands[1]), mean(i, read(region_of(launch.operands[0])), signature));
}

// outer_step, apply_delayed: the last operand that is read is the sum over the ranks.
void Flow::averaged(std::size_t i, const Launch& launch, const Signature& signature) {
  FactRanges sums = read(region_of(launch.operands[2]));
  for (const FactRange& piece : sums)
    for (Axis axis : plan_.mesh.active(kBatchAxes))
      if (!piece.facts.on(axis).is(Note::drifted)) mix(i, axis, "takes for a sum what is " + piece.facts.along(axis));
  const FactRanges pieces = mean(i, std::move(sums), signature);
  for (const Operand& operand : launch.operands)
    if (access_of(operand) == Access::read) read(region_of(operand));
  for (const Operand& operand : launch.operands)
    if (access_of(operand) != Access::read) write(i, region_of(operand), pieces);
}

// ---- Compression -----------------------------------------------------------------------------------------------------

// Gradient, residual → packet. bf16 keeps its elements; the others are a code of all of them.
void Flow::compress(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region& packet = region_of(launch.operands[2]);
  const std::int64_t width = size_of(signature.operands[0].dtype);
  FactRanges pieces = read(region_of(launch.operands[0]));
  const bool codes = signature.op != Op::compress_bf16;
  pieces = codes ? FactRanges{{0, packet.bytes, tables_.packed(pieces, width)}} : resized(std::move(pieces), width, size_of(signature.operands[2].dtype));
  for (FactRange& piece : pieces) {
    piece.facts.dtype = signature.operands[2].dtype;
    if (codes) piece.facts.content = Content::code;
  }
  write(i, packet, std::move(pieces));
}

// `sums`: of the packets of all ranks.
void Flow::decompress(std::size_t i, const Launch& launch, const Signature& signature, bool sums) {
  const Region& to = region_of(launch.operands[1]);
  const std::int64_t width = size_of(signature.operands[1].dtype);
  Facts facts = uniform(region_of(launch.operands[0]));
  if (facts.content != Content::code || facts.layout < 0) return report_(i, "decompresses what is no compressed gradient");
  std::int64_t slices = 1;
  for (Axis axis : plan_.mesh.active(kTokenAxes)) {
    Held& held = facts.on(axis);
    if (held.is(Note::stacked) && sums) held = Held(held.placement);
    if (!held.is(Note::none) || held.placement.is_partial()) mix(i, axis, "decompresses what is " + facts.along(axis));
    if (held.placement.is_shard()) slices *= plan_.mesh.size(axis);
  }
  facts.content = Content::values;
  facts.dtype = signature.operands[1].dtype;
  FactRanges pieces = tables_.unpacked(facts, width);
  if (pieces.back().last != slices * to.bytes) report_(i, "decompresses another number of elements");
  write(i, to, slices > 1 ? FactRanges{{0, to.bytes, facts}} : std::move(pieces));
}

}  // namespace trainer
