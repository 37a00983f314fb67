// A cut dim gives one run for each of its parts, repeated over the dims before it; slices then clip these.
#include "engine/plan/pieces.h"

#include <algorithm>

#include "engine/core/check.h"

namespace trainer {
namespace {

ElementRange intersection(ElementRange a, ElementRange b) {
  const ElementRange both{std::max(a.first, b.first), std::min(a.last, b.last)};
  return both.size() > 0 ? both : ElementRange{};
}

// One description for one set of elements: no repetition that is none, no strides that mean nothing.
Piece normal(Piece piece) {
  if (piece.repeat > 1 && piece.global_stride == piece.count && piece.local_stride == piece.count) {
    piece.count *= piece.repeat;
    piece.repeat = 1;
  }
  if (piece.repeat == 1) piece.global_stride = piece.local_stride = 0;
  return piece;
}

// Repetitions [first, last) of a piece, of each of them the elements [skip, skip + count).
Piece part_of(const Piece& piece, std::int64_t first, std::int64_t last, std::int64_t skip, std::int64_t count) {
  return normal({piece.global + first * piece.global_stride + skip, piece.local + first * piece.local_stride + skip,
                 count, last - first, piece.global_stride, piece.local_stride});
}

// Clips by the numbering in which the piece begins at `base` and repeats every `stride`.
std::vector<Piece> clip(const Piece& piece, std::int64_t base, std::int64_t stride, ElementRange within) {
  std::vector<Piece> result;
  if (within.size() <= 0) return result;
  const std::int64_t step = piece.repeat > 1 ? stride : 1;
  const auto reaches = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at <= 0 ? 0 : (at + step - 1) / step, 0, piece.repeat);
  };
  std::int64_t first = reaches(within.first - base - piece.count + 1), last = reaches(within.last - base);
  const auto one = [&](std::int64_t r) {
    const std::int64_t begin = base + r * stride;
    const ElementRange inside = intersection({begin, begin + piece.count}, within);
    result.push_back(part_of(piece, r, r + 1, inside.first - begin, inside.size()));
  };
  const auto is_whole = [&](std::int64_t r) {
    return base + r * stride >= within.first && base + r * stride + piece.count <= within.last;
  };
  if (first < last && !is_whole(first)) one(first++);
  const bool tail = first < last && !is_whole(last - 1);
  if (first < last - (tail ? 1 : 0)) result.push_back(part_of(piece, first, last - (tail ? 1 : 0), 0, piece.count));
  if (tail) one(last - 1);
  return result;
}

// Of the dim that is cut: rank `index` has elements [global, + count) at [local, + count) of its own.
struct Rows {
  std::int64_t global, local, count;
};

std::vector<Rows> rows_of(const Placement& cut, std::int64_t whole, int index, int ranks) {
  const std::int64_t own = (whole + ranks - 1) / ranks;
  if (cut.parts == 1) return {{index * own, 0, std::clamp<std::int64_t>(whole - index * own, 0, own)}};
  const std::int64_t lengths = cut.lead + cut.parts - 1, length = whole / lengths / ranks;
  CHECK(length * lengths * ranks == whole, "each part of a packed dim is cut evenly");
  std::vector<Rows> rows;
  std::int64_t global = 0, local = 0;
  for (int part = 0; part < cut.parts; ++part) {
    const std::int64_t count = length * (part == 0 ? cut.lead : 1);
    rows.push_back({global + index * count, local, count});
    global += count * ranks;
    local += count;
  }
  return rows;
}

// Those that hold the same elements, and which of them a rank is.
struct Copies {
  std::int64_t index = 0, count = 1;
};

// The elements around a tensor that the same ranks have alike.
ElementRange alike_around(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh) {
  ElementRange range;
  Axes alike;
  for (const UnitRun& run : runs_of(unit, mesh)) {
    if (range.size() > 0 && run.alike == alike)
      range.last = run.elements.last;
    else if (tensor.offset < range.last)
      return range;
    else
      range = run.elements, alike = run.alike;
  }
  return range;
}

// Of the held elements of a unit those that one of the copies saves. Only what lies over the same ranks as the tensor
// does is shared out together, else the shares would not meet.
ElementRange share_of(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh, ElementRange held, Copies copies) {
  held = intersection(alike_around(unit, tensor, mesh), held);
  return {held.first + held.size() * copies.index / copies.count,
          held.first + held.size() * (copies.index + 1) / copies.count};
}

std::vector<Piece> clipped(const std::vector<Piece>& pieces, ElementRange within) {
  std::vector<Piece> result;
  for (const Piece& piece : pieces)
    for (const Piece& inside : clip_local(piece, within)) result.push_back(inside);
  return result;
}

// Who has the same elements of a unit, which the ranks along `apart` do not.
Copies copies_of(const UnitTensor& tensor, Axes apart, const Mesh& mesh, const Coordinates& at) {
  const Axes alike = (kTokenAxes | Axis::tensor) - apart - axes_of(tensor.spec);
  return {mesh.index(at, alike), mesh.group_size(alike)};
}

}  // namespace

std::vector<Unit> model_units(const Role& role) {
  std::vector<Unit> units = role.units;
  for (const State& state : role.states) {
    if (!state.initial) continue;
    const std::int64_t elements = state.spec.whole.elements();
    CHECK(state.spec.cuts().empty(), state.name + " is the same on all ranks");
    Unit& unit = units.emplace_back();
    unit.name = state.name;
    unit.tensors = {{.name = state.name,
                     .spec = state.spec,
                     .offset = 0,
                     .elements = elements,
                     .init = {.constant = *state.initial}}};
    unit.compute = state.spec.dtype();
    unit.elements = elements;
    unit.optimizer = -1;
    unit.slots = {{.kind = Slot::Kind::working,
                   .name = {},
                   .spec = {state.spec.format, {elements}},
                   .region = state.region,
                   .saved = true}};
  }
  return units;
}

ElementRange held_range(const Unit& unit, const Mesh& mesh, const Coordinates& at) {
  if (!unit.sharded()) return {0, unit.elements};
  const std::int64_t index = mesh.index(at, unit.slice_axes());
  return {index * unit.slice(), (index + 1) * unit.slice()};
}

std::vector<Piece> pieces_of(const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at) {
  Shape whole = tensor.spec.whole;
  std::int64_t first = 0;  // of the rank's experts
  if (const Placement experts = tensor.spec.on(Axis::expert); experts.is_shard()) {
    CHECK(experts == Placement::shard(0) && whole[0] % mesh.size(Axis::expert) == 0, tensor.name + " is cut evenly");
    whole[0] /= mesh.size(Axis::expert);
    first = at[static_cast<std::size_t>(Axis::expert)] * whole.elements();
  }
  const std::span<const Cut> cuts = tensor.spec.cuts().subspan(tensor.spec.is_cut(Axis::expert) ? 1 : 0);
  CHECK(cuts.size() <= 1, tensor.name + " is cut along one axis, and expert");
  if (cuts.empty()) return {{first, tensor.offset, whole.elements()}};
  const Cut& cut = cuts.front();
  CHECK(cut.as.dim > 0 || first == 0, tensor.name + " is cut in another dim than its experts");
  const Shape own = local_shape(tensor.spec, mesh);
  const int dim = cut.as.dim;
  std::int64_t outer = 1, inner = 1;
  for (int other = 0; other < whole.rank(); ++other) {
    if (other < dim) outer *= whole[other];
    if (other > dim) inner *= whole[other];
  }
  std::vector<Piece> pieces;
  for (const Rows& rows : rows_of(cut.as, whole[dim], at[static_cast<std::size_t>(cut.axis)], mesh.size(cut.axis)))
    if (rows.count > 0)
      pieces.push_back(normal({first + rows.global * inner, tensor.offset + rows.local * inner, rows.count * inner,
                               outer, whole[dim] * inner, own[dim] * inner}));
  return pieces;
}

std::vector<Piece> held_pieces(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at) {
  return clipped(pieces_of(tensor, mesh, at), held_range(unit, mesh, at));
}

std::vector<Piece> saved_pieces(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at) {
  if (!unit.stages.empty() && at[static_cast<std::size_t>(Axis::pipeline)] != unit.stages.front()) return {};
  const Copies copies = copies_of(tensor, unit.sharded() ? unit.slice_axes() : Axes{}, mesh, at);
  return clipped(pieces_of(tensor, mesh, at), share_of(unit, tensor, mesh, held_range(unit, mesh, at), copies));
}

StateOwner state_owner_of(const Unit& unit, const Mesh& mesh, const Coordinates& at) {
  const auto stage = std::find(unit.stages.begin(), unit.stages.end(), at[static_cast<std::size_t>(Axis::pipeline)]);
  const int index = unit.stages.empty() ? 0 : static_cast<int>(stage - unit.stages.begin());
  const int stages = std::max(1, static_cast<int>(unit.stages.size()));
  const int ranks = mesh.group_size(kTokenAxes);
  return {index * ranks + mesh.index(at, kTokenAxes), stages * ranks};
}

std::vector<Piece> saved_own(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at) {
  const Copies copies = copies_of(tensor, kTokenAxes, mesh, at);
  return clipped(pieces_of(tensor, mesh, at), share_of(unit, tensor, mesh, {0, unit.elements}, copies));
}

std::vector<Piece> clip_global(const Piece& piece, ElementRange within) {
  return clip(piece, piece.global, piece.global_stride, within);
}
std::vector<Piece> clip_local(const Piece& piece, ElementRange within) {
  return clip(piece, piece.local, piece.local_stride, within);
}

std::vector<Piece> chunks_of(const Piece& piece, std::int64_t limit) {
  CHECK(limit > 0, "chunks have elements");
  std::vector<Piece> result;
  const std::int64_t repeats = std::max<std::int64_t>(1, limit / piece.count);
  for (std::int64_t r = 0; r < piece.repeat; r += repeats)
    for (std::int64_t skip = 0; skip < piece.count; skip += limit)
      result.push_back(
          part_of(piece, r, std::min(piece.repeat, r + repeats), skip, std::min(limit, piece.count - skip)));
  return result;
}

}  // namespace trainer
