// How collectives turn facts into facts: each must find its operands such that it does what its kind says.
#include <algorithm>

#include "engine/plan/verify_flow.h"

namespace trainer {
namespace {

using Kind = Way::Kind;

// A run of a value becomes the same run of another: both values begin where their buffers do.
bool same_run(const Collective& collective) {
  const Region &in = collective.input.region, &out = collective.output.region;
  return collective.dim <= 0 || in.offset * out.bytes == out.offset * in.bytes;
}

}  // namespace

void Flow::collective(std::size_t i, const Collective& collective) {
  for (const FactRange& piece : read(i, collective.input.region))
    if (piece.facts.dtype && piece.facts.dtype != collective.dtype) {
      report_(i, "moves as " + std::string(name_of(collective.dtype)) + " what is " + std::string(name_of(*piece.facts.dtype)));
      break;
    }
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      return all_reduce(i, collective);
    case CollectiveKind::reduce_scatter:
      return reduce_scatter(i, collective);
    case CollectiveKind::all_gather:
      return all_gather(i, collective);
    case CollectiveKind::all_to_all: {
      const Facts facts = uniform(i, collective.input.region);
      for (Axis axis : kAxes)
        if (collective.axes.has(axis) && active(axis) && !facts.on(axis).is(Kind::piece))
          mix(i, axis, "exchanges what is " + describe(facts.on(axis)));
      return write(i, collective.output.region, facts);
    }
    case CollectiveKind::broadcast:
      report_(i, "overwrites what the other ranks have");
      return write(i, collective.output.region, read(i, collective.input.region));
  }
}

void Flow::all_reduce(std::size_t i, const Collective& collective) {
  FactRanges pieces = read(i, collective.input.region);
  for (Axis axis : kAxes) {
    if (!collective.axes.has(axis) || !active(axis)) continue;
    bool told = false;
    for (FactRange& piece : pieces) {
      Way& way = piece.facts.on(axis);
      if (way.is(Kind::partial))
        way = Way::same();
      else if (way.is(Kind::drift))
        way = {Kind::drift_sum};
      else if (!way.is(Kind::zero)) {
        if (!told) mix(i, axis, "sums what is " + describe(way));
        told = true;
        way = {};
      }
    }
  }
  write(i, collective.output.region, pieces);
}

void Flow::reduce_over_stages(std::size_t i, const Collective& collective, const FactRanges& found) {
  FactRanges pieces = found;
  for (FactRange& piece : pieces) {
    piece.facts.dtype = collective.dtype;
    for (Axis axis : kAxes) {
      if (!collective.axes.has(axis) || !active(axis)) continue;
      Way& way = piece.facts.on(axis);
      const bool sums = axis == Axis::pipeline ? way.is(Kind::piece) : way.is(Kind::partial);
      if (!sums && !way.is(Kind::zero)) mix(i, axis, "sums what is " + describe(way));
      way = axis == Axis::pipeline
                ? stages_way(collective.stages.empty() ? std::vector<std::int32_t>(static_cast<std::size_t>(plan_.mesh.size(axis)))
                                                       : collective.stages)
                : Way::same();
    }
  }
  write(i, collective.output.region, pieces);
}

// In one buffer a rank's slice lies at its own place; else the two keep clear of each other.
bool Flow::own_place(const Collective& collective, const Region& slice, const Region& whole) const {
  if (whole.step != 0) return false;
  if (slice.buffer != whole.buffer) return true;
  return plan_.mesh.active(collective.axes) == plan_.mesh.active(slice.over) && slice.offset == whole.offset && slice.step == slice.bytes;
}

void Flow::reduce_scatter(std::size_t i, const Collective& collective) {
  const Region &whole = collective.input.region, &slice = collective.output.region;
  if (!own_place(collective, slice, whole)) return report_(i, "puts a slice where it does not belong");
  if (!same_run(collective)) report_(i, "scatters a run into the place of another");
  FactRanges pieces = read(i, whole);
  Facts facts = pieces.empty() ? Facts{} : pieces.front().facts;
  FlatLayout layout;
  const std::int64_t width = size_of(collective.dtype);
  for (const FactRange& piece : pieces) {
    append(layout, {piece.first / width, piece.last / width, piece.facts.on(Axis::tensor)});
    facts = merged(facts, piece.facts);
  }
  facts.dtype = collective.dtype;
  for (Axis axis : kAxes) {
    if (!collective.axes.has(axis) || !active(axis)) continue;
    for (const FactRange& piece : pieces)
      if (const Way& way = piece.facts.on(axis); !way.is(Kind::partial) && !way.is(Kind::zero)) {
        mix(i, axis, "sums what is " + describe(way));
        break;
      }
    if (collective.dim < 0 && slice_axes().has(axis) && slice_axes().within(collective.axes))
      make_slice(facts, tables_.index_of(layout));
    else if (collective.dim >= 0 && !kBatchAxes.has(axis))
      facts.on(axis) = Way::cut(collective.dim), facts.run = collective.dim > 0 ? slice.bytes : 0;
    else
      mix(i, axis, "leaves slices of which nothing is known");
  }
  write(i, slice, facts);
}

void Flow::all_gather(std::size_t i, const Collective& collective) {
  const Region &slice = collective.input.region, &whole = collective.output.region;
  if (!own_place(collective, slice, whole)) return report_(i, "takes a slice from where it does not belong");
  if (!same_run(collective)) report_(i, "gathers a run into the place of another");
  Facts facts = uniform(i, slice);
  const FlatLayout* layout = nullptr;
  for (Axis axis : kAxes) {
    if (!collective.axes.has(axis) || !active(axis)) continue;
    Way& way = facts.on(axis);
    const bool whole_run = way.dim == 0 || (facts.run == slice.bytes && address(slice) % facts.run == facts.phase);
    const bool rows = !kBatchAxes.has(axis) && way.is(Kind::cut) && way.dim >= 0 && way.parts == 1 && way.dim == collective.dim && whole_run;
    if (collective.dim < 0 && axis != Axis::tensor && way.is(Kind::slice) && way.base == 0 && slice_axes().within(collective.axes))
      layout = &tables_.layouts[static_cast<std::size_t>(way.index)];
    else if (!way.is(Kind::piece) && !rows)
      mix(i, axis, "gathers what is " + describe(way));
    if (rows && collective.dim > 0) facts.run = 0;
    way = Way::same();
  }
  if (layout == nullptr) return write(i, whole, facts);
  FactRanges pieces;
  const std::int64_t width = size_of(collective.dtype);
  for (const LayoutEntry& entry : *layout) {
    facts.on(Axis::tensor) = entry.tensor;
    pieces.push_back({entry.first * width, entry.last * width, facts});
  }
  if (pieces.back().last != whole.bytes) report_(i, "gathers another number of elements than the slices are of");
  write(i, whole, pieces);
}

}  // namespace trainer
