// Saving on one mesh and loading on another, with plans made by hand: no step runs, so what is compared is every byte
// of memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/train/held_buffer.h"
#include "engine/train/ranks.h"
#include "engine/train/weights.h"
#include "tests/temporary.h"

using namespace trainer;
using tests::TemporaryFolder;

namespace {

constexpr std::uint64_t kSeed = 11;
constexpr std::int32_t kUpdates = 17;

enum class Masters { whole, slices_of_working, slices };

// How a run holds the parameters.
struct Holding {
  std::string name;
  std::array<int, 4> mesh;  // pipeline, replicate, shard, tensor
  Masters masters = Masters::whole;
  bool anchor = false;    // a state of the strategy's
  bool residual = false;  // of compression
  bool own = false;       // states of the optimizer are each rank's own
};

const std::vector<Holding> kHoldings{
    {"one", {1, 1, 1, 1}},
    {"ddp", {1, 4, 1, 1}},
    {"zero1", {1, 1, 4, 1}, Masters::slices_of_working},
    {"fsdp", {1, 1, 3, 1}, Masters::slices},
    {"hybrid", {1, 2, 2, 1}, Masters::slices},
    {"local_sgd", {1, 3, 1, 1}, Masters::whole, true},
    {"compressed", {1, 4, 1, 1}, Masters::whole, false, true},
    {"compressed zero", {1, 1, 2, 2}, Masters::slices, false, true},
    {"compressed stages", {2, 2, 1, 1}, Masters::whole, false, true},
    {"tensor", {1, 1, 1, 2}},
    {"tensor of 3, anchored", {1, 2, 1, 3}, Masters::whole, true},
    {"pipeline", {2, 1, 1, 1}},
    {"3d", {2, 1, 2, 2}, Masters::slices_of_working},
    {"outer", {1, 3, 1, 1}, Masters::whole, true, false, true},
    {"outer of 2, tensor", {1, 2, 1, 2}, Masters::whole, true, false, true},
    {"outer, stages", {2, 2, 1, 1}, Masters::whole, true, false, true},
};

struct Whole {
  std::string name;
  Shape shape;
  Placement cut;
  Init init{.stddev = 0.5, .constant = 1.0};
};

// Rows that do not divide, packed heads of q twice as many as of k, columns, packed columns; rows of a table in units
// apart, the later ones first; and one that both stages use.
const Whole kShared{"wte", {13, 6}, Placement::shard(0), {.constant = -2, .uniform = 0.25}};
const std::vector<Whole> kFirst{{"qkv", {24, 5}, Placement::shard(0, 3, 2)},
                                {"qkv.bias", {24}, Placement::shard(0, 3, 2)},
                                {"norm", {5}, {}},
                                {"table.rows.4-9.of.9", {5, 3}, {}}};
const std::vector<Whole> kLast{{"proj", {5, 12}, Placement::shard(1)},
                               {"packed", {3, 24, 2}, Placement::shard(1, 3, 2)},
                               {"proj.bias", {5}, {}},
                               {"table.rows.0-4.of.9", {4, 3}, {}}};

UnitTensor cut_over(const Whole& whole, const Mesh& mesh) {
  UnitTensor tensor;
  tensor.name = whole.name;
  tensor.spec = Spec(DType::f32, whole.shape);
  tensor.init = whole.init;
  if (mesh.size(Axis::tensor) > 1) tensor.spec.place(Axis::tensor, whole.cut);
  tensor.elements = local_shape(tensor.spec, mesh).elements();
  return tensor;
}

class PlanMaker {
 public:
  PlanMaker(const Holding& holding, const std::vector<std::string>& optimizer)
      : holding_(holding), optimizer_(optimizer) {
    plan_.mesh = {{Axis::pipeline, holding.mesh[0]},
                  {Axis::replicate, holding.mesh[1]},
                  {Axis::shard, holding.mesh[2]},
                  {Axis::tensor, holding.mesh[3]}};
  }

  Plan run() {
    const int stages = plan_.mesh.size(Axis::pipeline);
    for (int stage = 0; stage < stages; ++stage) {
      plan_.roles.emplace_back();
      role().scalars = buffer(16);
      role().applied = buffer(4);
      if (stage == 0) unit("first", kFirst);
      unit("shared", {kShared});
      if (stages == 2) role().units.back().stages = {0, 1};
      if (stage == stages - 1) unit("last", kLast);
    }
    return std::move(plan_);
  }

 private:
  Role& role() { return plan_.roles.back(); }

  BufferId buffer(std::int64_t bytes) {
    Buffer made;
    made.bytes = bytes;
    made.offset = role().total_bytes;
    role().total_bytes += aligned(bytes);
    role().buffers.push_back(made);
    return static_cast<BufferId>(role().buffers.size()) - 1;
  }

  void unit(const std::string& name, const std::vector<Whole>& tensors) {
    Unit unit;
    unit.name = name;
    const int shards = plan_.mesh.size(Axis::shard), own_ranks = plan_.mesh.group_size(kBatchAxes);
    for (const bool alike : {false, true})
      for (const Whole& whole : tensors) {
        UnitTensor tensor = cut_over(whole, plan_.mesh);
        if (tensor.spec.cuts().empty() != alike) continue;
        tensor.offset = unit.elements;
        unit.elements += (tensor.elements + 7) / 8 * 8;
        unit.tensors.push_back(tensor);
      }
    unit.elements = (unit.elements + 8 * shards - 1) / (8 * shards) * (8 * shards);
    const std::int64_t all = unit.elements * 4, slice = holding_.masters == Masters::whole ? all : all / shards;
    Spec whole(DType::f32, Shape{unit.elements}), sliced = whole, own(DType::f32, Shape{own_ranks, unit.elements});
    if (slice < all) sliced.place(Axis::shard, Placement::shard(0));
    for (Axis axis : kTokenAxes) own.place(axis, Placement::shard(0));
    const Region master = holding_.masters == Masters::slices
                              ? Region(buffer(slice), 0, slice)
                              : own_slice({buffer(all), 0, all}, kSliceAxes, static_cast<int>(all / slice));
    unit.slots.push_back(
        {.kind = Slot::Kind::master, .name = "master", .spec = sliced, .region = master, .saved = true});
    const auto add = [&](Slot::Kind kind, const std::string& slot, const Spec& spec, std::int64_t bytes) {
      unit.slots.push_back(
          {.kind = kind, .name = slot, .spec = spec, .region = {buffer(bytes), 0, bytes}, .saved = true});
    };
    for (const std::string& state : optimizer_) add(Slot::Kind::state, state, holding_.own ? own : sliced, slice);
    if (holding_.anchor) add(Slot::Kind::strategy_state, "anchor", sliced, slice);
    if (holding_.residual) add(Slot::Kind::residual, "residual", own, all);
    role().units.push_back(std::move(unit));
  }

  const Holding& holding_;
  const std::vector<std::string> optimizer_;
  Plan plan_;
};

Plan plan_of(const Holding& holding, const std::vector<std::string>& optimizer = {"exp_avg", "exp_avg_sq"}) {
  return PlanMaker(holding, optimizer).run();
}

// A rank's memory, and nothing that runs.
class MemoryOnly final : public Executor {
 public:
  MemoryOnly(const Plan& plan, int rank) : role_(plan.role_of(rank)), point_{plan.mesh, plan.mesh.coordinates(rank)} {
    memory_.resize(static_cast<std::size_t>(role_.total_bytes));
    set_scalars(*this, 1.0F);
  }
  void bind(std::int32_t, void*) override {}
  void start(std::int32_t) override {}
  void finish() override {}
  bool runs_beside_host() const override { return false; }
  std::optional<NonFinite> find_non_finite(std::int32_t) override { return std::nullopt; }
  void write(const Region& region, const void* data) override {
    std::memcpy(at(region), data, static_cast<std::size_t>(region.bytes));
  }
  void read(const Region& region, void* data) const override {
    std::memcpy(data, const_cast<MemoryOnly*>(this)->at(region), static_cast<std::size_t>(region.bytes));
  }
  void record_times(bool) override {}
  std::span<const Span> times(std::int32_t) const override { return {}; }
  std::int64_t allocated_bytes() const override { return role_.total_bytes; }
  const Role& role() const override { return role_; }
  const std::vector<std::byte>& memory() const { return memory_; }

 private:
  std::byte* at(const Region& region) {
    const std::int64_t address = role_.address(region, point_);
    REQUIRE(address >= 0);
    REQUIRE(address + region.bytes <= role_.total_bytes);
    return memory_.data() + address;
  }

  const Role& role_;
  const MeshPoint point_;
  std::vector<std::byte> memory_;
};

// Element `index` of a tensor of the checkpoint, that is no parameter.
float value_of(const std::string& name, std::int64_t index) {
  return static_cast<float>(random_below(random_key(5, name), 0, static_cast<std::uint64_t>(index), 1 << 20));
}

template <typename Value>
void fill(const HeldBuffer& buffer, const std::vector<Piece>& pieces, Value&& value) {
  for (const Piece& piece : pieces) {
    std::vector<float> values;
    for (std::int64_t r = 0; r < piece.repeat; ++r)
      for (std::int64_t i = 0; i < piece.count; ++i)
        values.push_back(value(piece.global + r * piece.global_stride + i));
    buffer.write(piece, values.data());
  }
}

// Of the holders of a unit in another plan, which may have it on its last stage alone.
int num_holders(const Plan& plan, const std::string& unit) {
  for (const Role& role : plan.roles)
    for (const Unit& each : role.units)
      if (each.name == unit) return state_owner_of(each, plan.mesh, {}).count;
  return 0;
}

// What a holder gets of what `before` holders saved: its own, or (where their number differs) the sum at `first`, or
// their mean.
float own_value(const UnitTensor& tensor, const std::string& what, int before, StateOwner holder, bool mean,
                std::int64_t index) {
  if (before == holder.count) return value_of(own_name(tensor, what, holder.index), index);
  if (!mean && holder.index != 0) return 0;
  float sum = 0;
  for (int each = 0; each < before; ++each) sum += value_of(own_name(tensor, what, each), index);
  return mean ? sum * (1.0F / static_cast<float>(before)) : sum;
}

// The memory that a rank has in the middle of training; `from`: after it loaded what that one saved.
void fill_rank(const LoadedRank& loaded, const Holding& from) {
  draw_weights(loaded, kSeed, 1);
  const Mesh& mesh = loaded.plan.mesh;
  const Coordinates at = mesh.coordinates(loaded.rank);
  const Plan saved = plan_of(from);
  for (const Unit& unit : loaded.executor.role().units)
    for (const UnitTensor& tensor : unit.tensors) {
      const int before = num_holders(saved, unit.name);
      const StateOwner holder = state_owner_of(unit, mesh, at);
      for (const Slot& slot : unit.slots) {
        if (slot.kind != Slot::Kind::state && slot.kind != Slot::Kind::strategy_state) continue;
        const std::string& state = slot.name;
        if (state == "anchor" && !from.anchor) continue;
        const bool own = from.own && state != "anchor";
        fill(held_buffer(loaded, unit, slot), held_pieces(unit, tensor, mesh, at), [&](std::int64_t index) {
          if (!own) return value_of(state_name(tensor, state), index);
          return own_value(tensor, state, before, slot.own() ? holder : StateOwner{0, -1}, true, index);
        });
      }
      if (unit.find(Slot::Kind::residual) == nullptr || !from.residual) continue;
      fill(held_buffer(loaded, unit, *unit.find(Slot::Kind::residual)), pieces_of(tensor, mesh, at),
           [&](std::int64_t index) { return own_value(tensor, "residual", before, holder, false, index); });
    }
  loaded.executor.write({loaded.executor.role().applied, 0, 4}, &kUpdates);
}

std::string save(const std::string& dir, const Holding& holding, bool sharded,
                 const std::vector<std::string>& optimizer = {"exp_avg", "exp_avg_sq"}) {
  const Plan plan = plan_of(holding, optimizer);
  checkpoint::Store store(dir);
  store.begin(3);
  run_ranks(plan.mesh.world_size(), [&](Communicator& communicator) {
    MemoryOnly executor(plan, communicator.rank());
    const LoadedRank loaded{executor, plan, communicator.rank()};
    fill_rank(loaded, holding);
    FilesAtOnce files(dir, 3);
    sharded ? save_sharded(loaded, files) : save_full(loaded, communicator.control(), &files);
  });
  return store.commit(3, "0123abcd", "{}");
}

std::vector<float> drawn(const Whole& whole) {
  std::vector<float> values(static_cast<std::size_t>(whole.shape.elements()));
  const bool uniform = whole.init.uniform > 0;
  (uniform ? fill_uniform : fill_normal)(random_key(kSeed, whole.name), 0, 0, whole.shape.elements(), values.data());
  for (float& value : values)
    value = static_cast<float>(whole.init.constant) +
            static_cast<float>(uniform ? whole.init.uniform : whole.init.stddev) * value;
  return values;
}

}  // namespace

TEST_CASE("whatever holding saved, in either format, every rank of any other loads the bytes it would have had") {
  const TemporaryFolder folder;
  for (const Holding& from : kHoldings)
    for (const bool sharded : {false, true}) {
      const std::string path = save(folder.path(from.name + (sharded ? " sharded" : " full")), from, sharded);
      REQUIRE(checkpoint::verify(path).empty());
      const checkpoint::Checkpoint saved = checkpoint::open_checkpoint(path);
      for (const Holding& to : kHoldings) {
        const Plan plan = plan_of(to);
        for (int rank = 0; rank < plan.mesh.world_size(); ++rank) {
          CAPTURE(from.name);
          CAPTURE(to.name);
          CAPTURE(rank);
          MemoryOnly loaded(plan, rank), expected(plan, rank);
          load_weights({loaded, plan, rank}, saved.tensors, path, false);
          load_states({loaded, plan, rank}, saved.tensors, path);
          fill_rank({expected, plan, rank}, from);
          CHECK(loaded.memory() == expected.memory());
        }
      }
    }
}

TEST_CASE("a checkpoint holds parameters by global name and element, drawn alike by every holding") {
  const TemporaryFolder folder;
  std::vector<Whole> all{kShared};
  all.insert(all.end(), kFirst.begin(), kFirst.end());
  all.insert(all.end(), kLast.begin(), kLast.end());
  std::erase_if(all, [](const Whole& whole) { return whole.name.starts_with("table"); });
  all.push_back({"table", {9, 3}, {}});
  for (const Holding& from : kHoldings)
    for (const bool sharded : {false, true}) {
      CAPTURE(from.name);
      const std::string path = save(folder.path(from.name + (sharded ? " sharded" : " full")), from, sharded);
      const checkpoint::Checkpoint saved = checkpoint::open_checkpoint(path);
      for (const Whole& whole : all) {
        const checkpoint::TensorInfo* info = saved.tensors.find(whole.name);
        REQUIRE(info != nullptr);
        REQUIRE(info->shape == whole.shape);
        std::vector<float> values(static_cast<std::size_t>(whole.shape.elements()));
        saved.tensors.read(whole.name, 0, whole.shape.elements(), values.data());
        CHECK(values == drawn(whole));
      }
      if (!sharded) CHECK(saved.manifest.files.size() == 2);
    }
}

TEST_CASE("sharded files hold equal shares of what several ranks hold alike, and each holder's residual") {
  const TemporaryFolder folder;
  const checkpoint::Checkpoint saved = checkpoint::open_checkpoint(save(folder.path("ddp"), kHoldings[1], true));
  std::int64_t least = INT64_MAX, most = 0;
  int models = 0;
  for (const checkpoint::FileInfo& file : saved.manifest.files) {
    if (!file.name.starts_with("model")) continue;
    ++models;
    std::int64_t bytes = 0;
    const checkpoint::SafetensorsFile contents(saved.path + "/" + file.name);
    for (const checkpoint::TensorEntry& entry : contents.tensors()) bytes += entry.last - entry.first;
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  CHECK(models == 4);
  CHECK(most - least <= 3 * 8 * 4);  // three units, each padded by less than 8 elements a tensor and a share
  const checkpoint::Checkpoint compressed =
      checkpoint::open_checkpoint(save(folder.path("stages"), kHoldings[8], true));
  for (int holder = 0; holder < 4; ++holder)
    CHECK(compressed.tensors.find(own_name(cut_over(kShared, {}), "residual", holder)) !=
          nullptr);  // 2 replicas on 2 stages
  CHECK(compressed.tensors.find(own_name(cut_over(kShared, {}), "residual", 4)) == nullptr);
  CHECK(compressed.tensors.find(own_name(cut_over(kFirst[0], {}), "residual", 2)) == nullptr);
}

TEST_CASE("states of another optimizer are named, on every rank alike") {
  const TemporaryFolder folder;
  const std::string path = save(folder.path("sgd"), kHoldings[0], true, {"momentum_buffer"});
  const checkpoint::Checkpoint saved = checkpoint::open_checkpoint(path);
  const Plan plan = plan_of(kHoldings[11]);  // a pipeline
  std::set<std::string> messages;
  for (int rank = 0; rank < 2; ++rank) {
    MemoryOnly executor(plan, rank);
    messages.insert(tests::message_of<DataError>([&] { load_states({executor, plan, rank}, saved.tensors, path); }));
  }
  REQUIRE(messages.size() == 1);
  const std::string first = plan.roles.front().units.front().tensors.front().name;
  for (const char* state : {"exp_avg", "exp_avg_sq"})
    CHECK(tests::contains(*messages.begin(), first + " has no " + state + ": it was not trained by this optimizer"));
  CHECK(std::ranges::count(*messages.begin(), '\n') == 2);  // one parameter for each state
}
