// The lattice, and the way between it and the placements in which ops state their rules.
#include "engine/plan/verify_ways.h"

#include <algorithm>
#include <string_view>

#include "engine/ops/op_def.h"

namespace trainer {
namespace {

using Kind = Way::Kind;

std::optional<Placement> placement_of(const Way& way, int rank) {
  switch (way.kind) {
    case Kind::zero:
    case Kind::same:
    case Kind::shared:
      return Placement::replicate();
    case Kind::cut:
      if (way.dim > 0 && way.dim >= rank - 1) return Placement::shard(Placement::kRows, way.parts, way.lead);
      return Placement::shard(way.dim == Way::kLast ? rank - 1 : way.dim, way.parts, way.lead);
    case Kind::partial:
      return Placement::partial();
    case Kind::drift:
      return Placement::replicate();
    case Kind::piece:
    case Kind::slice:
    case Kind::drift_sum:
    case Kind::unknown:
      break;
  }
  return std::nullopt;
}

}  // namespace

Way way_of(const Placement& placement, int rank) {
  if (placement.is_replicate()) return Way::same();
  if (placement.is_partial()) return Way::partial();
  if (placement.dim == Placement::kRows) return Way::cut(1, placement.parts, placement.lead);
  const bool last = placement.dim > 0 && placement.dim == rank - 1;
  return Way::cut(last ? Way::kLast : placement.dim, placement.parts, placement.lead);
}

Way merged(const Way& a, const Way& b) {
  if (a.is(Kind::zero)) return b;
  if (b.is(Kind::zero) || a == b) return a;
  return {};
}

Facts merged(const Facts& a, const Facts& b) {
  Facts both = a;
  for (std::size_t axis = 0; axis < kNumAxes; ++axis) both.ways[axis] = merged(a.ways[axis], b.ways[axis]);
  if (!a.dtype)
    both.dtype = b.dtype;
  else if (b.dtype && *a.dtype != *b.dtype)
    both.dtype = std::nullopt;
  if (a.run != b.run || a.phase != b.phase) both.run = both.phase = 0;
  both.writer = std::max(a.writer, b.writer);
  return both;
}

bool fits(const Way& expected, const Way& actual) {
  if (actual.is(Kind::zero) || actual == expected) return true;
  return expected.is(Kind::zero) && actual.is(Kind::same);
}

std::string describe(const Way& way) {
  switch (way.kind) {
    case Kind::zero:
      return "zero";
    case Kind::same:
      return "the same on all";
    case Kind::cut:
      return "cut by " + std::string(way.dim == 0 ? "rows" : way.dim == Way::kLast ? "columns" : "a dim between");
    case Kind::piece:
      return "each rank's own";
    case Kind::slice:
      return "a slice";
    case Kind::partial:
      return "a sum still to be made";
    case Kind::shared:
      return "shared by some stages";
    case Kind::drift:
      return "drifted apart";
    case Kind::drift_sum:
      return "a sum of what drifted apart";
    case Kind::unknown:
      break;
  }
  return "unknown";
}

FlatLayout layout_of(const Unit& unit) {
  FlatLayout layout;
  std::int64_t end = 0;
  const auto pad = [&](std::int64_t to) {
    if (end < to) append(layout, {end, to, Way::zero()});
  };
  for (const UnitTensor& tensor : unit.tensors) {
    pad(tensor.offset);
    end = tensor.offset + tensor.elements;
    append(layout, {tensor.offset, end, way_of(tensor.spec.on(Axis::tensor), tensor.spec.whole.rank())});
  }
  pad(unit.elements);
  return layout;
}

bool fits(const FlatLayout& expected, const FlatLayout& actual) {
  if (expected.empty() || actual.empty() || expected.back().last != actual.back().last) return false;
  auto due = expected.begin();
  for (const LayoutEntry& entry : actual)
    for (std::int64_t at = entry.first; at < entry.last;) {
      while (due->last <= at) ++due;
      if (!fits(due->tensor, entry.tensor)) return false;
      at = std::min(due->last, entry.last);
    }
  return true;
}

std::optional<FlatLayout> merged(const FlatLayout& a, const FlatLayout& b) {
  if (a.empty() || b.empty() || a.back().last != b.back().last) return std::nullopt;
  FlatLayout both;
  auto other = b.begin();
  for (const LayoutEntry& entry : a)
    for (std::int64_t at = entry.first; at < entry.last;) {
      while (other->last <= at) ++other;
      const std::int64_t end = std::min(entry.last, other->last);
      const Way way = merged(entry.tensor, other->tensor);
      if (way.is(Kind::unknown)) return std::nullopt;
      append(both, {at, end, way});
      at = end;
    }
  return both;
}

void append(FlatLayout& layout, const LayoutEntry& entry) {
  if (!layout.empty() && layout.back().tensor == entry.tensor)
    layout.back().last = entry.last;
  else
    layout.push_back(entry);
}

const WayRules::Answer& WayRules::apply(std::int32_t signature, const std::vector<Way>& inputs, std::size_t num_outputs, std::int64_t step) {
  known_.resize(role_.signatures.size());
  std::deque<Known>& known = known_[static_cast<std::size_t>(signature)];
  for (const Known& one : known)
    if (one.step == step && one.inputs == inputs) return one.answer;
  known.push_back({inputs, step, ask(role_.signatures[static_cast<std::size_t>(signature)], inputs, num_outputs, step)});
  return known.back().answer;
}

WayRules::Answer WayRules::ask(const Signature& signature, const std::vector<Way>& inputs, std::size_t num_outputs, std::int64_t step) const {
  if (inputs.size() + num_outputs != signature.operands.size()) return std::nullopt;
  Graph graph;
  Node node{.name = {}, .op = signature.op, .attributes = signature.attributes};
  for (std::size_t i = 0; i < signature.operands.size(); ++i) {
    const TensorDesc& tensor = signature.operands[i];
    const ValueId value = graph.add_value({.name = {}, .spec = {tensor.dtype, tensor.shape}});
    (i < inputs.size() ? node.inputs : node.outputs).push_back(value);
  }
  std::vector<Placement> placements;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::optional<Placement> placement = placement_of(inputs[i], signature.operands[i].shape.rank());
    if (!placement) return std::nullopt;
    placements.push_back(*placement);
  }
  const auto outputs = propagate(graph, node, placements, step);
  if (!outputs || outputs->size() != num_outputs) return std::nullopt;
  std::vector<Way> ways;
  for (std::size_t i = 0; i < num_outputs; ++i) ways.push_back(way_of((*outputs)[i], signature.operands[inputs.size() + i].shape.rank()));
  return ways;
}

}  // namespace trainer
