// How collectives turn facts into facts: axis by axis, by what each kind does to values that lie so. There is nothing
// here of what they are for; a value that a kind is not for is a violation.
#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "engine/plan/verify/flow.h"

namespace trainer {
namespace {

using Note = Held::Note;
using Content = Facts::Content::Kind;

// What a collective makes of a value along an axis of its group; nothing: it is not for such values.
std::optional<Held> effect(const Collective& collective, const Facts& facts, Axis axis, int ranks) {
  const auto& [placement, note] = facts.on(axis);
  const bool code = facts.is(Content::code), update = facts.is(Content::update);
  const bool summand = note == Note::none && placement.is_partial();
  const Placement slice = Placement::shard(std::max<int>(collective.dim, 0));
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      if (note == Note::zero) return facts.on(axis);
      if (placement.is_partial() && !code) return Held(Placement::replicate(), note);
      break;
    case CollectiveKind::reduce_scatter:
      if ((note == Note::zero || summand) && !code) return Held(slice);
      if (update && note == Note::stacked && placement.is_partial())
        return Held(Placement::replicate(), Note::by_layout);
      break;
    case CollectiveKind::all_gather:
      if (facts.on(axis) == Held(slice)) return Held::same();
      if ((summand && code) || (update && note == Note::by_layout)) return Held(Placement::replicate(), Note::stacked);
      break;
    case CollectiveKind::all_to_all:
      if (summand && code) return Held(slice, Note::stacked);
      if (collective.dim >= 0 && facts.on(axis) == Held(Placement::shard(1 - collective.dim))) return Held(slice);
      break;
    case CollectiveKind::shift:
      if (note == Note::none && placement.is_shard() && facts.is(Content::values) && facts.layout < 0)
        return Held(placement.shifted(ranks));
      break;
  }
  return std::nullopt;
}

std::string_view verb_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce_scatter:
      return "sums";
    case CollectiveKind::all_gather:
      return "gathers";
    case CollectiveKind::all_to_all:
      return "exchanges";
    case CollectiveKind::shift:
      return "sends on";
  }
  return "?";
}

}  // namespace

FactRanges Flow::bring(std::size_t i, const Collective& collective) {
  FactRanges pieces = read(collective.input.region);
  for (const FactRange& piece : pieces) {
    if (!piece.facts.dtype || piece.facts.dtype == collective.dtype) continue;
    report_(i, "moves as " + std::string(name_of(collective.dtype)) + " what is " +
                   std::string(name_of(*piece.facts.dtype)));
    break;
  }
  return pieces;
}

void Flow::collective(std::size_t i, const Collective& collective, FactRanges pieces) {
  const Region& out = collective.output.region;
  const std::int64_t width = size_of(collective.dtype);
  const bool scatters = collective.kind == CollectiveKind::reduce_scatter,
             gathers = collective.kind == CollectiveKind::all_gather;
  const bool of_slices = collective.kind != CollectiveKind::all_reduce && collective.kind != CollectiveKind::shift;
  if (of_slices) {  // rank i's slice is of all of it
    const bool of_whole = scatters && collective.dim < 0;
    const auto is_slice = [](const FactRange& piece) {
      return piece.facts.layout >= 0 && !piece.facts.is(Content::update);
    };
    if (of_whole && std::ranges::any_of(pieces, is_slice)) return report_(i, "scatters slices");
    pieces = {{0, out.bytes, of_whole ? tables_.packed(pieces, width) : merged(pieces)}};
    if ((gathers || scatters) && !own_place(collective)) return report_(i, "has a slice where it does not belong");
    Facts& facts = pieces.front().facts;
    const int ranks = plan_.mesh.group_size(collective.axes);
    if (facts.is(Content::code) && collective.kind == CollectiveKind::all_to_all && facts.content.chunks != ranks)
      return report_(i, "cuts codes where none begin");
    if (facts.is(Content::code) && gathers) facts.content.chunks *= ranks;
    const bool turns = collective.kind == CollectiveKind::all_to_all && collective.dim >= 0;
    if (turns && !turns_slices(collective, pieces.front().facts))
      return report_(i, "exchanges other slices than it is to");
    if (gathers && !all_slices(collective, pieces.front().facts))
      return report_(i, "gathers other slices than it is to");
    if ((gathers || scatters) && !in_order(collective, pieces.front().facts))
      return report_(i, "takes slices of a dim in another order than they lie");
  }
  for (Axis axis : plan_.mesh.active(collective.axes)) {
    bool told = false;
    for (FactRange& piece : pieces) {
      const std::optional<Held> held = effect(collective, piece.facts, axis, plan_.mesh.size(axis));
      if (!held && !std::exchange(told, true))
        mix(i, axis, std::string(verb_of(collective.kind)) + " what is " + piece.facts.along(axis));
      piece.facts.on(axis) = held.value_or(Held());
      if (axis == Axis::pipeline) piece.facts.stages = stage_set(collective.stages);
    }
  }
  for (FactRange& piece : pieces) {
    piece.facts.dtype = collective.dtype;
    piece.facts.content.home = 0;  // it is no copy of what lies there
    if (collective.dim > 0) piece.facts.run = scatters ? out.bytes : 0;
    if (collective.kind == CollectiveKind::all_to_all && collective.dim >= 0)
      piece.facts.run = collective.dim == 1 ? out.bytes / plan_.mesh.group_size(collective.axes) : 0;
  }
  const Facts& facts = pieces.front().facts;
  if (!gathers || facts.layout < 0 || !facts.is(Content::values)) return write(i, out, std::move(pieces));
  pieces = tables_.unpacked(facts, width);
  if (pieces.back().last != out.bytes) report_(i, "gathers another number of elements than the slices are of");
  write(i, out, std::move(pieces));
}

// In one buffer a rank's slice lies at its own place; else the two keep clear of each other. A run of a value is the
// same run of the whole value: both begin where their buffers do, or the parts of rings.
bool Flow::own_place(const Collective& collective) const {
  const Region &in = collective.input.region, &out = collective.output.region;
  const bool scatters = collective.kind == CollectiveKind::reduce_scatter;
  const Region &slice = scatters ? out : in, &whole = scatters ? in : out;
  const auto run = [&](const Region& region) {
    const std::int64_t stride = role_.buffer(region.buffer).stride;
    return stride == 0 ? region.offset : region.offset % stride;
  };
  if (whole.step != 0 || (collective.dim > 0 && run(in) * out.bytes != run(out) * in.bytes)) return false;
  return slice.buffer != whole.buffer || (plan_.mesh.active(collective.axes) == plan_.mesh.active(slice.over) &&
                                          slice.offset == whole.offset && slice.step == slice.bytes);
}

// The axes that slice the dim of a collective, or the flat buffer.
Axes Flow::cut_axes(const Collective& collective, const Facts& facts) const {
  Axes cut;
  for (Axis axis : kAxes)
    if (active(axis) && facts.on(axis).placement.is_shard(std::max<int>(collective.dim, 0))) cut = cut | axis;
  return cut;
}

// Outer axes slice first: a group may slice within other axes, and not around them.
bool Flow::in_order(const Collective& collective, const Facts& facts) const {
  const Axes group = plan_.mesh.active(collective.axes), cut = cut_axes(collective, facts), others = cut - group;
  if (collective.kind == CollectiveKind::all_gather && (cut & group).empty()) return true;  // whole parts
  return others.empty() || std::bit_width(others.mask) <= std::countr_zero(group.mask);
}

// Whether what an all_to_all turns, [1, n, …] into [n, 1, …] or back, are all n slices of a rank: what other axes cut
// of dim 0 lies around them, the context and tensor axes too (transform/distribute.cpp cuts along the experts' last).
// Its reader's shape says of how many bytes a slice is, as its maker's did.
bool Flow::turns_slices(const Collective& collective, const Facts& facts) const {
  const Axes group = plan_.mesh.active(collective.axes);
  Axes rows;
  for (Axis axis : kAxes)
    if (active(axis) && !group.has(axis) && kBatchAxes.has(axis) && facts.on(axis).placement.is_shard(0))
      rows = rows | axis;
  const bool inside = rows.empty() || std::bit_width(rows.mask) <= std::countr_zero(group.mask);
  const std::int64_t slice = collective.input.region.bytes / plan_.mesh.group_size(group);
  return inside && facts.is(Content::values) && facts.layout < 0 && (collective.dim == 1 || facts.run == slice) &&
         collective.input.region.bytes == collective.output.region.bytes &&
         collective.input.region.bytes == slice * plan_.mesh.group_size(group) &&
         collective.input.region.buffer != collective.output.region.buffer;
}

// Whether an all_gather takes just the slices that lie over its ranks: all of a flat buffer, from the first element on,
// or one run of a value whose dim is cut.
bool Flow::all_slices(const Collective& collective, const Facts& facts) const {
  if ((collective.dim < 0) != (facts.layout >= 0)) return false;
  if (collective.dim > 0)
    return facts.run == collective.input.region.bytes && address(collective.input.region) % facts.run == facts.phase;
  const Axes group = plan_.mesh.active(collective.axes), cut = cut_axes(collective, facts);
  return collective.dim == 0 || (cut & group).empty() || (facts.base == 0 && cut == group);
}

}  // namespace trainer
