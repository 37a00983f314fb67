// Facts, layouts, and what the rules of ops say of them.
#include "engine/plan/verify/facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/op_def.h"

namespace trainer {
namespace {

using Note = Held::Note;
using Content = Facts::Content::Kind;

// How a kernel takes an operand; nothing where no op can work on it.
std::optional<Placement> operand(const Facts& facts, Axis axis) {
  const Held& held = facts.on(axis);
  if (held.is(Note::zero) || held == Held::version())
    return Placement::replicate();  // a version is all that the rank knows of
  const bool tensor = facts.layout < 0 || held.placement.is_replicate();
  if (!held.is(Note::none) || !facts.is(Content::values) || !tensor) return std::nullopt;
  return held.placement;
}

/// Bytes of dims [dim, …) of a tensor.
std::int64_t bytes_from(const TensorDesc& tensor, int dim) {
  std::int64_t bytes = size_of(tensor.dtype);
  for (; dim < tensor.shape.rank(); ++dim) bytes *= tensor.shape[dim];
  return bytes;
}

/// A cut of bytes as one of a tensor. Of columns that are all elements of [heads, head_dim], it is one of the heads.
Placement of_tensor(const Placement& placement, const TensorDesc& tensor, std::int64_t row) {
  const int rank = tensor.shape.rank();
  if (!placement.is_shard()) return placement;
  if (placement.dim == Held::kLast) {
    const bool heads = rank >= 4 && placement.parts == 1 && row != 0 && bytes_from(tensor, rank - 2) == row;
    return placement.moved_to(heads ? rank - 2 : rank - 1);
  }
  return placement.dim > 0 && placement.dim >= rank - 1 ? placement.moved_to(Placement::kRows) : placement;
}

// Walks two layouts together, until visit(last, of the one, of the other) says no.
template <typename Visit>
bool together(const FlatLayout& a, const FlatLayout& b, const Visit& visit) {
  if (a.empty() || b.empty() || a.back().last != b.back().last) return false;
  auto other = b.begin();
  for (const LayoutEntry& entry : a)
    for (std::int64_t at = entry.first; at < entry.last;) {
      while (other->last <= at) ++other;
      const std::int64_t last = std::min(entry.last, other->last);
      if (!visit(ElementRange{at, last}, entry, *other)) return false;
      at = last;
    }
  return true;
}

bool fits(const Held& due, const Held& is) {
  return is.is(Note::zero) || is == due || (due.is(Note::zero) && is == Held::same());
}

}  // namespace

// ---- Along one axis -----------------------------------------------------------------------------------------------

Held::Held(const Placement& as, int rank) : placement(as), note(Note::none) {
  if (!as.is_shard()) return;
  if (as.dim == Placement::kRows)
    placement = as.moved_to(1);
  else if (as.dim > 0 && (as.dim == rank - 1 || (rank >= 4 && as.dim == rank - 2)))
    placement = as.moved_to(kLast);
}

Held merged(const Held& a, const Held& b) {
  if (a.is(Note::zero)) return b;
  return b.is(Note::zero) || a == b ? a : Held();
}

std::string Facts::along(Axis axis) const {
  const auto& [placement, note] = on(axis);
  switch (note) {
    case Note::none:
      break;
    case Note::zero:
      return "zero";
    case Note::by_layout:
      return "a slice";
    case Note::drifted:
      return placement.is_partial() ? "drifted apart" : "a sum of what drifted apart";
    case Note::stacked:
      return "the parts of all ranks";
    case Note::unknown:
      return "unknown";
  }
  if (placement.is_partial()) return "a sum still to be made";
  if (placement.is_replicate())
    return axis == Axis::pipeline && stages >= 0 ? "shared by some stages" : "the same on all";
  if (layout >= 0) return "a slice";
  std::string text = "cut by " + std::string(placement.dim == 0             ? "rows"
                                             : placement.dim == Held::kLast ? "columns"
                                                                            : "a dim between");
  if (placement.is_zigzag()) text += " zigzag";
  if (placement.turn != 0) text += ", of the rank " + std::to_string(placement.turn) + " before";
  if (placement.terms != Placement::Terms{})
    text += fmt::format(", of steps {} to {} of the ring", placement.terms.first, placement.terms.last - 1);
  return text;
}

// ---- Facts --------------------------------------------------------------------------------------------------------

Facts merged(const Facts& a, const Facts& b) {
  Facts both = a;
  for (Axis axis : kAxes) both.on(axis) = merged(a.on(axis), b.on(axis));
  if (a.on(Axis::pipeline).is(Note::zero))
    both.stages = b.stages;
  else if (!b.on(Axis::pipeline).is(Note::zero) && a.stages != b.stages)
    both.on(Axis::pipeline) = {};
  // Only what is zero wherever the other is sharded has a place in any layout.
  if (a.layout < 0)
    both.layout = b.layout, both.base = b.base;
  else if (b.layout >= 0 && (a.layout != b.layout || a.base != b.base))
    both.held.fill({});
  if (a.content != b.content) both.held.fill({}), both.content = {Content::mixed};
  both.dtype = a.dtype && b.dtype && *a.dtype != *b.dtype ? std::nullopt : a.dtype ? a.dtype : b.dtype;
  if (a.run != b.run || a.phase != b.phase) both.run = both.phase = 0;
  if (a.row != b.row) both.row = 0;
  both.writer = std::max(a.writer, b.writer);
  return both;
}

Facts merged(const FactRanges& pieces) {
  Facts all = pieces.empty() ? Facts{} : pieces.front().facts;
  for (const FactRange& piece : pieces) all = merged(all, piece.facts);
  return all;
}

FactRanges resized(FactRanges pieces, std::int64_t from, std::int64_t to) {
  for (FactRange& piece : pieces) {
    Facts& facts = piece.facts;
    for (std::int64_t* bytes : {&piece.first, &piece.last, &facts.base, &facts.run, &facts.row})
      *bytes = *bytes / from * to;
  }
  return pieces;
}

// ---- Layouts ------------------------------------------------------------------------------------------------------

FlatLayout layout_of(const Unit& unit) {
  FlatLayout layout;
  std::int64_t end = 0;
  const bool own = unit.own_axes().has(Axis::expert);
  const auto pad = [&](std::int64_t to) {
    if (end < to) append(layout, {end, to, Held::zero(), own ? Held::zero() : Held::same()});
  };
  for (const UnitTensor& tensor : unit.tensors) {
    pad(tensor.offset);
    end = tensor.offset + tensor.elements;
    const int rank = tensor.spec.whole.rank();
    append(layout, {tensor.offset, end, {tensor.spec.on(Axis::tensor), rank}, {tensor.spec.on(Axis::expert), rank}});
  }
  pad(unit.elements);
  return layout;
}

void append(FlatLayout& layout, const LayoutEntry& entry) {
  if (!layout.empty() && layout.back().tensor == entry.tensor && layout.back().expert == entry.expert)
    layout.back().last = entry.last;
  else
    layout.push_back(entry);
}

std::int32_t FlowTables::index_of(const FlatLayout& layout) {
  const auto [at, added] = layout_indices.try_emplace(layout, static_cast<std::int32_t>(layouts.size()));
  if (added) layouts.push_back(layout);
  return at->second;
}

bool FlowTables::fits(const Facts& due, const Facts& is, Axis axis) const {
  if (!trainer::fits(due.on(axis), is.on(axis))) return false;
  if (is.on(axis).is(Note::zero)) return true;
  if (axis == Axis::pipeline && due.stages != is.stages) return false;
  if (due.layout == is.layout) return due.content == is.content && (due.layout < 0 || due.base == is.base);
  return due.layout >= 0 && is.layout >= 0 && due.base == is.base && due.content == is.content &&
         together(layout(due), layout(is), [](ElementRange, const LayoutEntry& a, const LayoutEntry& b) {
           return trainer::fits(a.tensor, b.tensor) && trainer::fits(a.expert, b.expert);
         });
}

Facts FlowTables::packed(const FactRanges& pieces, std::int64_t width) {
  Facts all = merged(pieces);
  if (all.layout >= 0) return all;  // a slice is one already
  FlatLayout layout;
  const Held& experts = all.on(Axis::expert);
  const bool own = experts.is(Note::none) && experts.placement.is_shard();
  for (const FactRange& piece : pieces)
    append(layout, {piece.first / width, piece.last / width, piece.facts.on(Axis::tensor),
                    own ? piece.facts.on(Axis::expert) : Held::same()});
  all.layout = index_of(layout);
  all.on(Axis::tensor) = {Placement::replicate(), Note::by_layout};
  if (own) all.on(Axis::expert) = {Placement::replicate(), Note::by_layout};
  return all;
}

FactRanges FlowTables::unpacked(const Facts& facts, std::int64_t width) const {
  FactRanges pieces;
  for (const LayoutEntry& entry : layout(facts)) {
    FactRange& piece = pieces.emplace_back(FactRange{entry.first * width, entry.last * width, facts});
    piece.facts.layout = -1;
    piece.facts.on(Axis::tensor) = entry.tensor;
    if (facts.on(Axis::expert).is(Note::by_layout)) piece.facts.on(Axis::expert) = entry.expert;
  }
  return pieces;
}

void FlowTables::unite(Facts& a, Facts& b) {
  if (a.layout < 0 || b.layout < 0 || a.layout == b.layout) return;
  FlatLayout both;
  const bool known =
      together(layout(a), layout(b), [&](ElementRange elements, const LayoutEntry& one, const LayoutEntry& other) {
        append(both,
               {elements.first, elements.last, merged(one.tensor, other.tensor), merged(one.expert, other.expert)});
        return !both.back().tensor.is(Note::unknown) && !both.back().expert.is(Note::unknown);
      });
  if (known) a.layout = b.layout = index_of(both);
}

// ---- Rules --------------------------------------------------------------------------------------------------------

const Rules::Answer& Rules::apply(std::int32_t signature, std::span<const Facts> inputs, Axis axis,
                                  std::size_t num_outputs, std::int64_t step) {
  static const Answer kNone;
  const Signature& of = role_.signatures[static_cast<std::size_t>(signature)];
  if (inputs.size() + num_outputs != of.operands.size()) return kNone;
  placements_.clear();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::optional<Placement> placement = operand(inputs[i], axis);
    if (!placement) return kNone;
    placements_.push_back(of_tensor(*placement, of.operands[i], inputs[i].row));
  }
  known_.resize(role_.signatures.size());
  std::deque<Known>& known = known_[static_cast<std::size_t>(signature)];
  for (const Known& one : known)
    if (one.step == step && one.inputs == placements_) return one.answer;
  known.push_back({placements_, step, ask(of, placements_, num_outputs, step)});
  return known.back().answer;
}

Rules::Answer Rules::ask(const Signature& signature, std::span<const Placement> inputs, std::size_t num_outputs,
                         std::int64_t step) {
  Graph graph;
  Node node{.name = {}, .op = signature.op, .attributes = signature.attributes};
  for (std::size_t i = 0; i < signature.operands.size(); ++i) {
    const TensorDesc& tensor = signature.operands[i];
    const ValueId value = graph.add_value({.name = {}, .spec = {tensor.dtype, tensor.shape}});
    (i < inputs.size() ? node.inputs : node.outputs).push_back(value);
  }
  const auto outputs = propagate(graph, node, inputs, step);
  if (!outputs || outputs->size() != num_outputs) return std::nullopt;
  std::vector<Output> held;
  for (std::size_t i = 0; i < num_outputs; ++i) {
    const TensorDesc& tensor = signature.operands[inputs.size() + i];
    const int rank = tensor.shape.rank(), dim = (*outputs)[i].dim;
    const Held as((*outputs)[i], rank);
    const bool inside = rank >= 4 && dim == rank - 1;  // columns of [..., heads, head_dim] are no cut of heads
    held.push_back({as, as.placement.dim == Held::kLast && !inside ? bytes_from(tensor, dim) : 0});
  }
  return held;
}

}  // namespace trainer
