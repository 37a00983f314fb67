// Which elements each rank holds and saves, against walking every element of every rank by the definition of a cut.
#include "engine/plan/pieces.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

using namespace trainer;

namespace {

constexpr auto kTensor = static_cast<std::size_t>(Axis::tensor);
constexpr auto kPipeline = static_cast<std::size_t>(Axis::pipeline);

struct MeshedUnit {
  Mesh mesh;
  Unit unit;
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::int64_t among(std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(first, last)(engine_);
  }

 private:
  std::mt19937 engine_;
};

std::int64_t rounded_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

UnitTensor random_tensor(Random& random, int index, const Mesh& mesh, bool cut) {
  const int ranks = mesh.size(Axis::tensor);
  UnitTensor tensor;
  tensor.name = "t" + std::to_string(index);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(random.among(1, 3)));
  for (std::int64_t& size : sizes) size = random.among(1, 7);
  Placement placement;
  if (cut) {
    const int dim = static_cast<int>(random.among(0, static_cast<std::int64_t>(sizes.size()) - 1));
    const int parts = random.among(0, 1) == 0 ? 1 : 3, lead = parts == 1 ? 1 : static_cast<int>(random.among(1, 3));
    placement = Placement::shard(dim, parts, lead);
    if (parts > 1) sizes[static_cast<std::size_t>(dim)] = (lead + parts - 1) * ranks * random.among(1, 2);
  }
  tensor.spec = Spec(DType::f32, Shape(sizes));
  tensor.spec.place(Axis::tensor, placement);
  tensor.elements = local_shape(tensor.spec, mesh).elements();
  return tensor;
}

void give_master(Unit& unit, std::int64_t elements) {
  Slot master{.kind = Slot::Kind::master,
              .name = "master",
              .spec = Spec(DType::f32, Shape{unit.elements}),
              .region = {0, 0, elements * 4}};
  if (elements < unit.elements) master.spec.place(Axis::shard, Placement::shard(0));
  unit.slots.push_back(master);
}

// Cut tensors, then those that are alike along the tensor axis, then cut ones again, as units are laid out.
MeshedUnit random_unit(unsigned seed) {
  Random random(seed);
  MeshedUnit layout;
  for (const auto& [axis, most] :
       {std::pair(Axis::pipeline, 2), {Axis::replicate, 3}, {Axis::shard, 3}, {Axis::tensor, 3}})
    layout.mesh.set(axis, static_cast<int>(random.among(1, most)));
  Unit& unit = layout.unit;
  const int ranks = layout.mesh.size(Axis::tensor), shards = layout.mesh.size(Axis::shard);
  const auto add = [&](std::int64_t count, bool cut) {
    for (std::int64_t i = 0; i < count; ++i) {
      unit.tensors.push_back(
          random_tensor(random, static_cast<int>(unit.tensors.size()), layout.mesh, cut && ranks > 1));
      unit.tensors.back().offset = unit.elements;
      unit.elements += rounded_up(unit.tensors.back().elements, 4);
    }
  };
  add(random.among(0, 3), true);
  add(random.among(0, 3), false);
  add(random.among(unit.elements == 0 ? 1 : 0, 3), true);
  unit.elements = rounded_up(unit.elements, 4 * shards);
  const bool sharded = random.among(0, 1) == 0;
  give_master(unit, sharded ? unit.elements / shards : unit.elements);
  if (layout.mesh.size(Axis::pipeline) == 2) unit.stages = {1, 0};
  return layout;
}

// Element of the whole tensor that lies at `index` of rank `rank`'s part; -1: padding. By the words of the definition.
std::int64_t global_of(const UnitTensor& tensor, const Mesh& mesh, int rank, std::int64_t index) {
  const int ranks = mesh.size(Axis::tensor);
  const Shape &whole = tensor.spec.whole, shape = local_shape(tensor.spec, mesh);
  const Placement cut = tensor.spec.on(Axis::tensor);
  std::vector<std::int64_t> at(static_cast<std::size_t>(shape.rank()));
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    at[static_cast<std::size_t>(dim)] = index % shape[dim];
    index /= shape[dim];
  }
  if (cut.is_shard()) {
    std::int64_t& row = at[static_cast<std::size_t>(cut.dim)];
    std::vector<std::int64_t> rows;  // of the dim, that this rank holds, in its order
    const std::int64_t size = whole[cut.dim];
    if (cut.parts == 1) {
      for (std::int64_t i = 0; i < shape[cut.dim]; ++i) rows.push_back(rank * shape[cut.dim] + i);
    } else {
      std::int64_t first = 0;
      for (int part = 0; part < cut.parts; ++part) {
        const std::int64_t length = size / (cut.lead + cut.parts - 1) * (part == 0 ? cut.lead : 1);
        for (std::int64_t i = 0; i < length; ++i)
          if (i / (length / ranks) == rank) rows.push_back(first + i);
        first += length;
      }
    }
    row = rows.at(static_cast<std::size_t>(row));
    if (row >= size) return -1;
  }
  std::int64_t global = 0;
  for (int dim = 0; dim < whole.rank(); ++dim) global = global * whole[dim] + at[static_cast<std::size_t>(dim)];
  return global;
}

using Elements = std::map<std::int64_t, std::int64_t>;  // by local element, the global one

Elements elements_of(const std::vector<Piece>& pieces) {
  Elements elements;
  for (const Piece& piece : pieces)
    for (std::int64_t r = 0; r < piece.repeat; ++r)
      for (std::int64_t i = 0; i < piece.count; ++i) {
        const bool added =
            elements.emplace(piece.local + r * piece.local_stride + i, piece.global + r * piece.global_stride + i)
                .second;
        REQUIRE(added);
      }
  return elements;
}

Elements expected(const MeshedUnit& layout, const UnitTensor& tensor, const Coordinates& at) {
  const ElementRange held = held_range(layout.unit, layout.mesh, at);
  Elements elements;
  for (std::int64_t i = 0; i < tensor.elements; ++i) {
    const std::int64_t local = tensor.offset + i;
    if (local < held.first || local >= held.last) continue;
    const std::int64_t global = global_of(tensor, layout.mesh, at[kTensor], i);
    if (global >= 0) elements[local] = global;
  }
  return elements;
}

}  // namespace

TEST_CASE("a rank holds what the cut along the tensor axis and its slice of the unit leave") {
  for (unsigned seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const MeshedUnit layout = random_unit(seed);
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const Coordinates at = layout.mesh.coordinates(rank);
      for (const UnitTensor& tensor : layout.unit.tensors) {
        const auto pieces = held_pieces(layout.unit, tensor, layout.mesh, at);
        CHECK(elements_of(pieces) == expected(layout, tensor, at));
        CHECK(pieces.size() <= 3 * static_cast<std::size_t>(tensor.spec.on(Axis::tensor).parts));
      }
    }
  }
}

TEST_CASE("every element is saved by one rank, which holds it") {
  for (unsigned seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const MeshedUnit layout = random_unit(seed);
    const Unit& unit = layout.unit;
    std::vector<std::multiset<std::int64_t>> saved(unit.tensors.size());
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const Coordinates at = layout.mesh.coordinates(rank);
      for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
        const Elements held = expected(layout, unit.tensors[i], at);
        for (const auto& [local, global] : elements_of(saved_pieces(unit, unit.tensors[i], layout.mesh, at))) {
          saved[i].insert(global);
          CHECK(held.at(local) == global);
          if (!unit.stages.empty()) CHECK(at[kPipeline] == unit.stages.front());
        }
      }
    }
    for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
      std::multiset<std::int64_t> once;
      for (std::int64_t element = 0; element < unit.tensors[i].spec.whole.elements(); ++element) once.insert(element);
      CHECK(saved[i] == once);
    }
  }
}

TEST_CASE("replicas save equal shares") {
  MeshedUnit layout;
  layout.mesh = {{Axis::replicate, 4}};
  UnitTensor tensor;
  tensor.name = "w";
  tensor.spec = Spec(DType::f32, Shape{100, 8});
  tensor.elements = 800;
  layout.unit.tensors = {tensor};
  layout.unit.elements = 800;
  give_master(layout.unit, 800);
  for (int rank = 0; rank < 4; ++rank) {
    const auto pieces = saved_pieces(layout.unit, tensor, layout.mesh, layout.mesh.coordinates(rank));
    REQUIRE(pieces.size() == 1);
    CHECK(pieces[0] == Piece{rank * 200, rank * 200, 200});
  }
}

TEST_CASE("a matrix cut by columns is one piece, however many rows it has") {
  UnitTensor tensor;
  tensor.name = "w";
  tensor.spec = Spec(DType::f32, Shape{4096, 11008});
  tensor.spec.place(Axis::tensor, Placement::shard(1));
  const Mesh mesh{{Axis::tensor, 8}};
  const auto pieces = pieces_of(tensor, mesh, mesh.coordinates(3));
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0] == Piece{3 * 1376, 0, 1376, 4096, 11008, 1376});
}

TEST_CASE("clipped pieces and chunks hold just the elements of the window, in order") {
  Random random(5);
  for (int trial = 0; trial < 2000; ++trial) {
    CAPTURE(trial);
    Piece piece{random.among(0, 9), random.among(0, 9), random.among(1, 6)};
    if (random.among(0, 2) > 0) {
      piece.repeat = random.among(2, 5);
      piece.global_stride = piece.count + random.among(0, 4);
      piece.local_stride = piece.count + random.among(0, 4);
      if (piece.global_stride == piece.count && piece.local_stride == piece.count) ++piece.global_stride;
    }
    const std::int64_t first = random.among(0, 30);
    const ElementRange within{first, first + random.among(0, 30)};
    Elements by_global, by_local;
    for (const auto& [local, global] : elements_of({piece})) {
      if (global >= within.first && global < within.last) by_global[local] = global;
      if (local >= within.first && local < within.last) by_local[local] = global;
    }
    const auto ordered = [](const std::vector<Piece>& pieces) {
      return std::is_sorted(pieces.begin(), pieces.end(),
                            [](const Piece& a, const Piece& b) { return a.local < b.local; });
    };
    CHECK(elements_of(clip_global(piece, within)) == by_global);
    CHECK(elements_of(clip_local(piece, within)) == by_local);
    CHECK(ordered(clip_global(piece, within)));
    const std::int64_t limit = random.among(1, 8);
    const auto chunks = chunks_of(piece, limit);
    CHECK(elements_of(chunks) == elements_of({piece}));
    CHECK(ordered(chunks));
    for (const Piece& chunk : chunks) CHECK(chunk.elements() <= limit);
  }
}
