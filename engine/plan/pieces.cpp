// A cut dim gives one run for each of its parts, repeated over the dims before it; slices then clip these.
#include "engine/plan/pieces.h"

#include <algorithm>

#include "engine/core/check.h"

namespace trainer {
namespace {

Extent intersection(Extent a, Extent b) {
  const Extent both{std::max(a.first, b.first), std::min(a.last, b.last)};
  return both.size() > 0 ? both : Extent{};
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
  return normal({piece.global + first * piece.global_stride + skip, piece.local + first * piece.local_stride + skip, count, last - first,
                 piece.global_stride, piece.local_stride});
}

// Clips by the numbering in which the piece begins at `base` and repeats every `stride`.
std::vector<Piece> clip(const Piece& piece, std::int64_t base, std::int64_t stride, Extent within) {
  std::vector<Piece> result;
  if (within.size() <= 0) return result;
  const std::int64_t step = piece.repeat > 1 ? stride : 1;
  const auto reaches = [&](std::int64_t at) { return std::clamp<std::int64_t>(at <= 0 ? 0 : (at + step - 1) / step, 0, piece.repeat); };
  std::int64_t first = reaches(within.first - base - piece.count + 1), last = reaches(within.last - base);
  const auto one = [&](std::int64_t r) {
    const std::int64_t begin = base + r * stride;
    const Extent inside = intersection({begin, begin + piece.count}, within);
    result.push_back(part_of(piece, r, r + 1, inside.first - begin, inside.size()));
  };
  const auto is_whole = [&](std::int64_t r) { return base + r * stride >= within.first && base + r * stride + piece.count <= within.last; };
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

std::vector<Rows> rows_of(const UnitTensor& tensor, int index, int ranks) {
  const Placement& cut = tensor.cut;
  const std::int64_t whole = tensor.whole[cut.dim], own = tensor.shape[cut.dim];
  if (cut.parts == 1) {
    CHECK(own == (whole + ranks - 1) / ranks, tensor.name + " is cut into equal slices, the last of them padded");
    return {{index * own, 0, std::clamp<std::int64_t>(whole - index * own, 0, own)}};
  }
  const std::int64_t lengths = cut.lead + cut.parts - 1, length = whole / lengths / ranks;
  CHECK(length * lengths * ranks == whole && own == length * lengths, tensor.name + ": each of its parts is cut evenly");
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
  void along(const Mesh& mesh, const Coordinates& at, Axis axis) {
    index = index * mesh.size(axis) + at[static_cast<std::size_t>(axis)];
    count *= mesh.size(axis);
  }
};

// Of the held elements of a unit those that one of the copies saves. Only what lies over the same ranks as the tensor does is shared
// out together, else the shares would not meet.
Extent share_of(const Unit& unit, const UnitTensor& tensor, Extent held, Copies copies) {
  Extent kind = unit.replicated;
  if (!tensor.cut.is_replicate())
    kind = tensor.offset < unit.replicated.first ? Extent{0, unit.replicated.first} : Extent{unit.replicated.last, unit.elements};
  held = intersection(kind, held);
  return {held.first + held.size() * copies.index / copies.count, held.first + held.size() * (copies.index + 1) / copies.count};
}

std::vector<Piece> pieces_on(const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at, Extent within) {
  return pieces_of(tensor, at[static_cast<std::size_t>(Axis::tensor)], mesh.size(Axis::tensor), within);
}

}  // namespace

Extent held_extent(const Unit& unit, const Coordinates& at) {
  if (!unit.sharded()) return {0, unit.elements};
  const std::int64_t shard = at[static_cast<std::size_t>(Axis::shard)];
  return {shard * unit.slice(), (shard + 1) * unit.slice()};
}

std::vector<Piece> pieces_of(const UnitTensor& tensor, int index, int ranks, Extent within) {
  CHECK(!tensor.cut.is_partial(), tensor.name + " is a parameter, not a sum");
  std::vector<Piece> whole;
  if (tensor.cut.is_replicate()) {
    whole.push_back({0, tensor.offset, tensor.whole.elements()});
  } else {
    std::int64_t outer = 1, inner = 1;
    for (int dim = 0; dim < tensor.whole.rank(); ++dim) {
      if (dim < tensor.cut.dim) outer *= tensor.whole[dim];
      if (dim > tensor.cut.dim) inner *= tensor.whole[dim];
    }
    const std::int64_t global_stride = tensor.whole[tensor.cut.dim] * inner, local_stride = tensor.shape[tensor.cut.dim] * inner;
    for (const Rows& rows : rows_of(tensor, index, ranks))
      if (rows.count > 0)
        whole.push_back(
            normal({rows.global * inner, tensor.offset + rows.local * inner, rows.count * inner, outer, global_stride, local_stride}));
  }
  std::vector<Piece> result;
  for (const Piece& piece : whole)
    for (const Piece& inside : clip_local(piece, within)) result.push_back(inside);
  return result;
}

std::vector<Piece> held_pieces(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at) {
  return pieces_on(tensor, mesh, at, held_extent(unit, at));
}

std::vector<Piece> saved_pieces(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at) {
  if (!unit.stages.empty() && at[static_cast<std::size_t>(Axis::pipeline)] != unit.stages.front()) return {};
  Copies copies;
  copies.along(mesh, at, Axis::replicate);
  if (!unit.sharded()) copies.along(mesh, at, Axis::shard);
  if (tensor.cut.is_replicate()) copies.along(mesh, at, Axis::tensor);
  return pieces_on(tensor, mesh, at, share_of(unit, tensor, held_extent(unit, at), copies));
}

Holder holder_of(const Unit& unit, const Mesh& mesh, const Coordinates& at) {
  const auto stage = std::find(unit.stages.begin(), unit.stages.end(), at[static_cast<std::size_t>(Axis::pipeline)]);
  const int index = unit.stages.empty() ? 0 : static_cast<int>(stage - unit.stages.begin());
  const int stages = std::max(1, static_cast<int>(unit.stages.size()));
  const int ranks = mesh.group_size(kBatchAxes);
  return {index * ranks + mesh.index(at, kBatchAxes), stages * ranks};
}

std::vector<Piece> held_own(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at) {
  return pieces_on(tensor, mesh, at, {0, unit.elements});
}

std::vector<Piece> saved_own(const Unit& unit, const UnitTensor& tensor, const Mesh& mesh, const Coordinates& at) {
  Copies copies;
  if (tensor.cut.is_replicate()) copies.along(mesh, at, Axis::tensor);
  return pieces_on(tensor, mesh, at, share_of(unit, tensor, {0, unit.elements}, copies));
}

std::vector<Piece> clip_global(const Piece& piece, Extent within) { return clip(piece, piece.global, piece.global_stride, within); }
std::vector<Piece> clip_local(const Piece& piece, Extent within) { return clip(piece, piece.local, piece.local_stride, within); }

std::vector<Piece> chunks_of(const Piece& piece, std::int64_t limit) {
  CHECK(limit > 0, "chunks have elements");
  std::vector<Piece> result;
  const std::int64_t repeats = std::max<std::int64_t>(1, limit / piece.count);
  for (std::int64_t r = 0; r < piece.repeat; r += repeats)
    for (std::int64_t skip = 0; skip < piece.count; skip += limit)
      result.push_back(part_of(piece, r, std::min(piece.repeat, r + repeats), skip, std::min(limit, piece.count - skip)));
  return result;
}

}  // namespace trainer
