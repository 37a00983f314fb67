// What a step does with gradients once they are there: norm, seed of the loss, update, averages, compression. These ops
// have no sharding rules; what each demands of its operands stands here.
#include <algorithm>
#include <cmath>

#include "engine/core/compression.h"
#include "engine/core/op_record.h"
#include "engine/plan/update_operands.h"
#include "engine/plan/verify/flow.h"

namespace trainer {
namespace {

using Note = Held::Note;
using Content = Facts::Content::Kind;
using Of = UpdateDef::Operand;

bool is_one(double value) { return std::abs(value - 1.0) < 1e-9; }

double real_or_one(const Signature& signature, std::string_view name) {
  return signature.attributes.has(name) ? signature.attributes.real(name) : 1.0;
}

// Whether codes of `block` elements together (0: of all) are of elements that ranks of the tensor axis have alike, or
// of elements of which each has a part, and not of both: what ranks have alike would become another code on each of
// them.
bool codes_apart(const FlatLayout& layout, std::int64_t block) {
  const auto alike = [](const LayoutEntry& entry) { return entry.tensor == Held::same(); };
  const LayoutEntry* before = nullptr;
  for (const LayoutEntry& entry : layout) {
    if (entry.tensor.is(Note::zero)) continue;
    if (before != nullptr && alike(*before) != alike(entry) &&
        (block == 0 || (before->last - 1) / block == entry.first / block))
      return false;
    before = &entry;
  }
  return true;
}

Access access_due(Of of) { return of < Of::made ? Access::read : of < Of::changed ? Access::write : Access::update; }

}  // namespace

// ---- Norm, loss and update ----------------------------------------------------------------------------------------

void Flow::sum_squares(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region &region = region_of(launch.operands[0]), &squares = region_of(launch.operands[1]);
  const std::int64_t width = size_of(signature.operands[0].dtype);
  const std::int64_t first = integer(signature, "first"),
                     last = given_integer(signature, "last").value_or(std::int64_t{1} << 62);
  const double scale = real_or_one(signature, "scale");
  const FactRanges pieces = read(region);
  Facts result = Facts::all(Held::same(), DType::f64);
  const Facts all = merged(pieces);
  result.on(Axis::pipeline) = Held::partial();
  Axes sliced;
  for (Axis axis : plan_.mesh.active(kTokenAxes))
    if (all.layout >= 0 && all.on(axis) == Held(Placement::shard(0)) && all.base == 0) sliced = sliced | axis;
  const Affine own = origin_over(sliced, region.bytes / width, plan_.mesh);
  for (Axis axis : plan_.mesh.active(kTokenAxes)) {
    const Held& held = all.on(axis);
    const bool cut = held.is(Note::by_layout) || (held.is(Note::none) && held.placement.is_shard() && all.layout < 0);
    if (sliced.has(axis) && launch.origin.along(axis) == own.along(axis))
      result.on(axis) = Held::partial();
    else if (held == Held::partial() && drifting(axis))
      result.on(axis) = Held::version();
    else if (!held.is(Note::zero) && held != Held::same() && !(axis == Axis::expert && cut))
      mix(i, axis, "sums squares of what is " + all.along(axis)), result.on(axis) = {};
  }
  const Axes counted = plan_.mesh.active(Axis::expert | Axis::tensor);
  if (counted.empty() && !is_one(scale)) report_(i, "does not count its elements once");
  for (Axis axis : counted) result.on(axis) = Held::partial();
  for (const FactRange& piece : counted.empty()   ? FactRanges{}
                                : all.layout >= 0 ? tables_.unpacked(all, width)
                                                  : pieces)
    if (std::max(piece.first / width, first) < std::min(piece.last / width, last)) count_once(i, piece.facts, scale);
  if (access_of(launch.operands[1]) == Access::update) result = merged(uniform(squares), result);
  write(i, squares, result);
}

// Over all ranks along expert and tensor, what is cut there counts as it is, and what all have alike for as many.
void Flow::count_once(std::size_t i, const Facts& facts, double scale) {
  Axes alike;
  for (Axis axis : plan_.mesh.active(Axis::expert | Axis::tensor)) {
    const Held& held = facts.on(axis);
    if (held.is(Note::zero)) return;
    if (held == Held::same()) alike = alike | axis;
    if (held != Held::same() && !(held.is(Note::none) && held.placement.is_shard()))
      mix(i, axis, "does not count once what is " + facts.along(axis));
  }
  if (is_one(scale * plan_.mesh.group_size(alike))) return;
  const Axis axis = *(alike.empty() ? plan_.mesh.active(Axis::expert | Axis::tensor) : alike).begin();
  mix(i, axis, "does not count once what is " + facts.along(axis));
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
  static constexpr std::array kWhat{"takes a norm that is",
                                    "takes a loss that is",
                                    "takes a count that is",
                                    "takes scalars that are",
                                    "takes a count of updates that is",
                                    "takes a count of good steps that is"};
  const std::size_t operands = role_.good_steps >= 0 ? kWhat.size() : kWhat.size() - 1;
  if (launch.operands.size() != operands) return report_(i, "does not keep the role's loss scale");
  for (std::size_t operand = 0; operand < operands; ++operand)
    need_same(i, region_of(launch.operands[operand]), kWhat[operand]);
  if (role_.good_steps >= 0)
    for (Axis axis : kBatchAxes)
      if (drifting(axis)) report_(i, "lets each rank choose a loss scale alone");
  write(i, region_of(launch.operands[3]), Facts::all(Held::same(), DType::f32));
  for (std::size_t operand = 4; operand < operands; ++operand)
    write(i, region_of(launch.operands[operand]), Facts::all(Held::same(), DType::i32));
  ++scalar_updates_;
}

// ---- Update -------------------------------------------------------------------------------------------------------

// The unit is the one that the instruction says it works for: what it says is checked against each operand.
void Flow::update(std::size_t i, const Launch& launch, const Signature& signature) {
  const UpdateDef& def = *definition(signature.op).update;
  const auto index = static_cast<std::size_t>(program_.instructions[i].why.unit);
  if (index >= role_.units.size() || !role_.units[index].trained()) return report_(i, "updates no unit");
  const Unit& unit = role_.units[index];
  const std::size_t num_operands = launch.operands.size();
  const ElementRange elements = updated_elements(i, index, launch, signature);
  const auto states = state_operands(unit, {}, elements);
  std::size_t operand = 0, &updated = units_[index].states;
  if (elements.first > 0) updated = 0;
  const auto is_next_state = [&] {
    if (operand == num_operands || updated == states.size()) return false;
    const Operand& one = launch.operands[operand];
    return access_of(one) == Access::update && states[updated].first == signature.operands[operand] &&
           home_of(region_of(one)) == address(states[updated].second);
  };
  for (const Of of : def.operands) {
    if (of == Of::states) {  // over the ops of a unit's optimizer all of them, in order
      for (; is_next_state(); ++updated, ++operand) {
        const Region &region = region_of(launch.operands[operand]), &home = states[updated].second;
        on_device(region, home) ? note_write(i, home) : update_slot(i, region, home, read(region));
      }
    } else if (of != Of::working || !(unit.updated_working() == unit.parameters().region)) {
      if (operand == num_operands) return report_(i, "lacks an operand of its op");
      update_operand(i, index, of, launch, operand++, elements);
    }
  }
  if (operand != num_operands) report_(i, "has operands that are none of its op");
  if (def.has(Of::master) && updated != states.size()) report_(i, "leaves out states of " + unit.name);
}

// All of them, or a part that begins where the one before ended. An op that does not update the master takes all.
ElementRange Flow::updated_elements(std::size_t i, std::size_t index, const Launch& launch,
                                    const Signature& signature) {
  const Unit& unit = role_.units[index];
  const std::vector<Of>& operands = definition(signature.op).update->operands;
  const auto master = static_cast<std::size_t>(std::ranges::find(operands, Of::master) - operands.begin());
  if (master >= std::min(operands.size(), launch.operands.size()) || operands.front() != Of::master)
    return {0, unit.slice()};
  UnitRecord& record = units_[index];
  const std::int64_t first = record.next, last = first + signature.operands[master].elements();
  const Region due = part_of(unit.parameters().region, {first, last}, size_of(DType::f32));
  if (last > unit.slice() || home_of(region_of(launch.operands[master])) != address(due)) {
    report_(i, "updates what is not the master weights of " + unit.name);
    return {0, unit.slice()};
  }
  record.next = last == unit.slice() ? 0 : last;
  if (record.next == 0) ++record.updates;
  return {first, last};
}

// Updated where it is kept, on the device.
bool Flow::on_device(const Region& region, const Region& home) const {
  return region == home && role_.space_of(home) == Space::device;
}

void Flow::update_slot(std::size_t i, const Region& region, const Region& home, FactRanges pieces) {
  for (FactRange& piece : pieces) {
    piece.facts.content = {Content::updated};
    piece.facts.content.home = address(home) - address(region);
  }
  write(i, region, std::move(pieces));
  if (role_.space_of(home) != Space::device) note_write(i, home);  // there what brings it back writes it
}

void Flow::update_operand(std::size_t i, std::size_t index, Of of, const Launch& launch, std::size_t operand,
                          const ElementRange& elements) {
  const Unit& unit = role_.units[index];
  const Signature& signature = role_.signatures[static_cast<std::size_t>(launch.signature)];
  const UpdateDef& def = *definition(signature.op).update;
  const TensorDesc& tensor = signature.operands[operand];
  const Region& region = region_of(launch.operands[operand]);
  if (access_of(launch.operands[operand]) != access_due(of)) report_(i, "does not access its operands as its op does");
  const bool slice = (of == Of::gradient || of == Of::taken || of == Of::made || of == Of::changed) && !def.whole;
  if (slice && tensor.elements() != elements.size()) report_(i, "has another number of elements than " + unit.name);
  Facts made = flat(index, unit.slice(), DType::f32);
  switch (of) {
    case Of::rate:
      if (region.offset != unit.optimizer * size_of(DType::f32))
        report_(i, "takes the rate of another optimizer than that of " + unit.name);
      [[fallthrough]];
    case Of::scalars:
    case Of::applied:
      return need_same(i, region, "takes a scalar that is");
    case Of::gradient:
      return take_gradient(i, index, region, tensor.dtype, elements);
    case Of::taken:
      return void(take_update(i, index, region, def));
    case Of::states:
    case Of::made:
      break;
    case Of::changed:
      made = take_update(i, index, region, def);
      if (def.whole) made = change_matrices(i, index, launch, tensor, made);
      break;
    case Of::master:
      return update_master(i, index, launch, region, elements);
    case Of::working: {
      const Region home = part_of(unit.updated_working(), elements, size_of(unit.compute));
      if (on_device(region, home)) return write(i, region, lies(index, elements, unit.compute));
      if (!(region == home) && slots_.contains(region.buffer))
        report_(i, "writes what is not the working copy of " + unit.name);
      return update_slot(i, region, home, lies(index, elements, unit.compute));
    }
  }
  made.content = {Content::update, signature.op, static_cast<std::int32_t>(index)};
  write(i, region, made);
}

void Flow::update_master(std::size_t i, std::size_t index, const Launch& launch, const Region& region,
                         const ElementRange& elements) {
  const Unit& unit = role_.units[index];
  Affine origin = unit.sharded() ? slice_origin(unit, unit.slice(), plan_.mesh) : Affine{};
  origin.base += elements.first;
  if (!(launch.origin == origin)) report_(i, "takes another slice than its own");
  const Region home = part_of(unit.parameters().region, elements, size_of(DType::f32));
  const FactRanges pieces = lies(index, elements, DType::f32);
  if (on_device(region, home)) return write(i, region, pieces);
  update_slot(i, region, home, pieces);
}

// Gradients lie as the master does; a stage's own are its part of those of all, and ranks that train apart need not
// have summed theirs.
void Flow::take_gradient(std::size_t i, std::size_t unit, const Region& gradient, DType dtype,
                         const ElementRange& elements) {
  const bool own = role_.units[unit].stages.empty();
  const FactRanges due = lies(unit, elements, dtype), given = read(gradient);
  std::int64_t& first = units_[unit].gradient;
  const std::int64_t at = home_of(gradient);
  if (elements.first == 0) first = at;
  if (at < 0 || at != first + elements.first * size_of(dtype))
    report_(i, "takes the gradient of other elements than it updates");
  const auto foreign = [&](const FactRange& piece) { return piece.facts.dtype && piece.facts.dtype != dtype; };
  if (std::ranges::any_of(given, foreign)) report_(i, "reads gradients of another dtype");
  const auto is_gradient = [](const FactRange& piece) { return piece.facts.is(Content::values); };
  if (!std::ranges::all_of(given, is_gradient)) report_(i, "takes for gradients what is none");
  auto expected = due.begin();  // both ascend, and a unit may have thousands of either
  for (const FactRange& piece : given)
    for (std::int64_t at = piece.first; at < piece.last && expected != due.end();
         at = std::min(piece.last, expected->last)) {
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

// The update of this unit, of an op that this one follows: in slices as the master lies, or all of it on all ranks.
Facts Flow::take_update(std::size_t i, std::size_t index, const Region& region, const UpdateDef& def) {
  const Unit& unit = role_.units[index];
  const Facts is = uniform(region);
  Facts due = flat(index, def.whole ? unit.elements : unit.slice(), DType::f32);
  const bool its = is.is(Content::update) && is.content.unit == static_cast<std::int32_t>(index);
  if (!its || std::ranges::find(def.follows, is.content.made_by) == def.follows.end())
    report_(i, "does not follow an op that makes an update of " + unit.name);
  due.content = is.content;
  if (def.whole && matrix_axes(unit, plan_.mesh).has(Axis::tensor))
    due.on(Axis::tensor) = {Placement::replicate(), Note::stacked};
  for (Axis axis : kAxes)
    if (active(axis) && !tables_.fits(due, is, axis))
      mix(i, axis, "updates " + unit.name + " with what is " + is.along(axis));
  return is;
}

// Each whole matrix has one owner, among the ranks that differ by their origin: the sum over these is the update.
Facts Flow::change_matrices(std::size_t i, std::size_t index, const Launch& launch, const TensorDesc& tensor,
                            Facts is) {
  const Unit& unit = role_.units[index];
  const Signature& signature = role_.signatures[static_cast<std::size_t>(launch.signature)];
  Axes owners;
  for (Axis axis : kAxes)
    if (launch.origin.along(axis) != 0) owners = owners | axis;
  if (!(launch.origin == origin_over(owners, 1, plan_.mesh))) report_(i, "does not give each rank matrices of its own");
  std::vector<OwnedMatrix> matrices = matrix_list(text(signature, "matrices"));
  for (OwnedMatrix& matrix : matrices) {
    if (matrix.owner >= plan_.mesh.group_size(owners)) report_(i, "leaves a matrix to nobody");
    matrix.owner = 0;
  }
  const Axes cut = matrix_axes(unit, plan_.mesh) & Axes::of(Axis::tensor);
  const Shape whole{plan_.mesh.group_size(cut), unit.elements};
  const bool are = std::ranges::all_of(unit.tensors, [](const UnitTensor& one) { return one.spec.whole.rank() == 2; });
  if (tensor.shape != whole || !are || matrices != matrices_of(unit, plan_.mesh))
    report_(i, "works on other matrices than those of " + unit.name);
  for (Axis axis : owners) is.on(axis) = {Placement::partial(), is.on(axis).note};
  return is;
}

// ---- Averaging ----------------------------------------------------------------------------------------------------

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
    if (ranks > 1 && !is_one(real_or_one(signature, "factor") * ranks))
      report_(i, "makes no mean of " + std::to_string(std::llround(ranks)) + " ranks");
  }
  return sums;
}

// Of flat buffers; of values of a graph by their rule.
void Flow::scale(std::size_t i, const Launch& launch, const Signature& signature) {
  if (is_pass(program_.instructions[i].why.phase)) return graph_op(i, launch, signature);
  write(i, region_of(launch.operands[1]), mean(i, read(region_of(launch.operands[0])), signature));
}

// Anchor − master: what all ranks have alike less what each has becomes a term of a sum.
void Flow::outer_gradient(std::size_t i, const Launch& launch) {
  const FactRanges anchor = read(region_of(launch.operands[0]));
  FactRanges pieces = read(region_of(launch.operands[1]));
  for (Axis axis : plan_.mesh.active(kBatchAxes)) {
    for (const FactRange& piece : anchor)
      if (piece.facts.on(axis) != Held::same()) mix(i, axis, "takes for the anchor what is " + piece.facts.along(axis));
    for (FactRange& piece : pieces) {
      if (piece.facts.on(axis) != Held::version())
        mix(i, axis, "takes for a rank's own weights what is " + piece.facts.along(axis));
      piece.facts.on(axis) = Held::partial();
    }
  }
  write(i, region_of(launch.operands[2]), std::move(pieces));
}

// Of the sum of all ranks' outer gradients.
void Flow::outer_step(std::size_t i, const Launch& launch, const Signature& signature) {
  const FactRanges pieces = read(region_of(launch.operands[2]));
  const int ranks = plan_.mesh.group_size(kBatchAxes);
  for (const FactRange& piece : pieces)
    for (Axis axis : plan_.mesh.active(kBatchAxes))
      if (piece.facts.on(axis) != Held::same()) mix(i, axis, "takes for a sum what is " + piece.facts.along(axis));
  if (!is_one(real_or_one(signature, "factor") * ranks))
    report_(i, "makes no mean of " + std::to_string(ranks) + " ranks");
  for (const FactRange& piece : read(region_of(launch.operands[0])))
    for (Axis axis : plan_.mesh.active(kBatchAxes))
      if (piece.facts.on(axis) != Held::same()) mix(i, axis, "takes for the anchor what is " + piece.facts.along(axis));
  for (const std::size_t operand : {0, 1, 3}) write(i, region_of(launch.operands[operand]), pieces);
}

// The last operand that is read is the sum over the ranks.
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

// ---- Compression --------------------------------------------------------------------------------------------------

// Gradient, residual → packet. bf16 keeps its elements; the others are a code of all of them.
void Flow::compress(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region& packet = region_of(launch.operands.back());
  const std::int64_t width = size_of(signature.operands[0].dtype);
  FactRanges pieces = read(region_of(launch.operands[0]));
  const bool codes = signature.op != Op::compress_bf16;
  pieces = codes ? FactRanges{{0, packet.bytes, tables_.packed(pieces, width)}}
                 : resized(std::move(pieces), width, size_of(signature.operands.back().dtype));
  if (signature.op == Op::quantize_int8) {
    const std::int64_t elements = signature.operands[0].elements(), slices = integer(signature, "slices");
    if (slices < 1 || elements % slices != 0 || packet.bytes != slices * int8_bytes(elements / slices))
      report_(i, "makes codes of another number of elements");
  }
  for (FactRange& piece : pieces) {
    piece.facts.dtype = signature.operands.back().dtype;
    if (!codes) continue;
    if (!codes_apart(tables_.layout(piece.facts), signature.op == Op::quantize_int8 ? kInt8Block : 0))
      mix(i, Axis::tensor, "makes codes of what ranks have alike together with what each has a part of");
    piece.facts.content = {Content::code};
    piece.facts.content.chunks = signature.op == Op::quantize_int8 ? integer(signature, "slices") : 1;
  }
  write(i, packet, std::move(pieces));
}

// `sums`: of the packets of all ranks.
void Flow::decompress(std::size_t i, const Launch& launch, const Signature& signature, bool sums) {
  const Region& to = region_of(launch.operands[1]);
  const std::int64_t width = size_of(signature.operands[1].dtype);
  Facts facts = uniform(region_of(launch.operands[0]));
  if (!facts.is(Content::code) || facts.layout < 0 || facts.base != 0)
    return report_(i, "decompresses what is no compressed gradient");
  if (integer(signature, signature.op == Op::top_k_sum ? "ranks" : "slices") != facts.content.chunks)
    report_(i, "decompresses another number of parts than there are");
  std::int64_t slices = 1;
  for (Axis axis : plan_.mesh.active(kTokenAxes)) {
    Held& held = facts.on(axis);
    if (held.is(Note::by_layout)) continue;
    if (held.is(Note::stacked) && sums) held = Held(held.placement);
    if (!held.is(Note::none) || (held.placement.is_partial() && !sums))
      mix(i, axis, "decompresses what is " + facts.along(axis));
    if (held.placement.is_shard()) slices *= plan_.mesh.size(axis);
  }
  facts.content = {};
  facts.dtype = signature.operands[1].dtype;
  FactRanges pieces = tables_.unpacked(facts, width);
  if (pieces.back().last != slices * to.bytes) report_(i, "decompresses another number of elements");
  write(i, to, slices > 1 ? FactRanges{{0, to.bytes, facts}} : std::move(pieces));
}

}  // namespace trainer
