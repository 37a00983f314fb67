// Staging against reality: every large piece of memory that drawing, saving and loading ask for is counted as it is
// given.
#include "engine/train/staging.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>

#include "engine/train/ranks.h"
#include "engine/train/weights.h"
#include "tests/train/tiny_jobs.h"

namespace {

// What is smaller is what is known of a tensor, which staging does not count.
constexpr std::size_t kLarge = std::size_t{1} << 16;

std::atomic<std::int64_t> all_live{0}, all_peak{0};
thread_local std::int64_t live = 0, peak = 0;  // of this thread

void raise(std::atomic<std::int64_t>& most, std::int64_t value) {
  for (std::int64_t before = most; before < value && !most.compare_exchange_weak(before, value);) {
  }
}

// The size lies before what is given.
constexpr std::size_t kHead = alignof(std::max_align_t);

void* give(std::size_t bytes) {
  auto* memory = static_cast<std::byte*>(std::malloc(bytes + kHead));
  if (memory == nullptr) throw std::bad_alloc();
  std::memcpy(memory, &bytes, sizeof bytes);
  if (bytes >= kLarge) {
    peak = std::max(peak, live += static_cast<std::int64_t>(bytes));
    raise(all_peak, all_live += static_cast<std::int64_t>(bytes));
  }
  return memory + kHead;
}

void take(void* given) noexcept {
  if (given == nullptr) return;
  std::byte* memory = static_cast<std::byte*>(given) - kHead;
  std::size_t bytes = 0;
  std::memcpy(&bytes, memory, sizeof bytes);
  if (bytes >= kLarge) live -= static_cast<std::int64_t>(bytes), all_live -= static_cast<std::int64_t>(bytes);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return give(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {  // else a sanitizer has one of its own
  try {
    return give(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t bytes) { return give(bytes); }
void operator delete(void* given) noexcept { take(given); }
void operator delete[](void* given) noexcept { take(given); }
void operator delete(void* given, std::size_t) noexcept { take(given); }
void operator delete[](void* given, std::size_t) noexcept { take(given); }

using namespace trainer;
using namespace trainer::tests;

namespace {

// A rank's memory, and nothing that runs.
class MemoryOnly final : public Executor {
 public:
  MemoryOnly(const Plan& plan, int rank)
      : role_(plan.role_of(rank)),
        point_{plan.mesh, plan.mesh.coordinates(rank)},
        memory_(static_cast<std::size_t>(role_.total_bytes)) {}
  void bind(std::int32_t, void*) override {}
  void start(std::int32_t) override {}
  void finish() override {}
  bool runs_beside_host() const override { return false; }
  std::optional<NonFinite> find_non_finite(std::int32_t) override { return std::nullopt; }
  void write(const Region& region, const void* data) override {
    std::memcpy(memory_.data() + role_.address(region, point_), data, static_cast<std::size_t>(region.bytes));
  }
  void read(const Region& region, void* data) const override {
    std::memcpy(data, memory_.data() + role_.address(region, point_), static_cast<std::size_t>(region.bytes));
  }
  void record_times(bool) override {}
  std::span<const Span> times(std::int32_t) const override { return {}; }
  std::int64_t allocated_bytes() const override { return role_.total_bytes; }
  const Role& role() const override { return role_; }

 private:
  const Role& role_;
  MeshPoint point_;
  std::vector<std::byte> memory_;
};

// What this thread takes at most while it does something.
template <typename Action>
std::int64_t taken_by(Action&& action) {
  const std::int64_t before = live;
  peak = live;
  action();
  return peak - before;
}

// Its embedding has two chunks and its attention none: 2048 × 256 and 768 × 256 elements.
CompiledJob large(const TinyJobs& jobs, std::vector<std::string> overrides) {
  for (const char* one : {"model.with.dim=256", "model.with.vocab=2048", "model.with.layers=1"})
    overrides.emplace_back(one);
  return compiled(jobs.load("gpt2", "run", overrides));
}

struct Taken {
  std::atomic<std::int64_t> draw{0}, save{0}, behind{0}, load{0};
};

// What a rank takes while it saves, and while it copies what it saves. Both must leave the same files, of the weights
// at that time.
void measure_saves(const LoadedRank& loaded, ControlChannel& channel, const std::string& dir, bool full,
                   const Staging::Save& planned, Taken& taken) {
  const auto save_to = [&](SavedFiles& files) {
    full ? save_full(loaded, channel, &files) : save_sharded(loaded, files);
  };
  raise(taken.save, taken_by([&] {
          FilesAtOnce files(dir, 1);
          save_to(files);
        }));
  const bool writes = !full || loaded.rank == 0;
  std::optional<FilesBehind> files;
  raise(taken.behind, taken_by([&] {
          files.emplace(writes ? planned.copy : 0);
          files->stage(dir, 2);
          save_to(*files);
        }));
  draw_weights(loaded, 4, 1);  // as a step changes them before the files are written
  files->start();
  files->finish();
}

// The most that any rank took.
void measure(const CompiledJob& job, const std::string& dir, bool full, Taken& taken) {
  const Staging staging = staging_of(job.plan, 1);
  checkpoint::Store store(dir);
  store.begin(1);
  std::filesystem::create_directory(dir + "/.step-00000002.tmp");
  run_ranks(job.plan.mesh.world_size(), [&](Communicator& communicator) {
    MemoryOnly executor(job.plan, communicator.rank());
    const LoadedRank loaded{executor, job.plan, communicator.rank()};
    set_scalars(executor, 1.0F);
    raise(taken.draw, taken_by([&] { draw_weights(loaded, 3, 1); }));
    measure_saves(loaded, communicator.control(), dir, full, full ? staging.full : staging.sharded, taken);
  });
  std::int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir + "/.step-00000001.tmp")) {
    const std::string name = entry.path().filename();
    CHECK_MESSAGE(contents_of(entry.path()) == contents_of(dir + "/.step-00000002.tmp/" + name), name);
    if (name.ends_with(".safetensors")) bytes += static_cast<std::int64_t>(entry.file_size());
  }
  const std::int64_t described = 512 * checkpoint_tensors(job.plan, Saved::all);
  CHECK(bytes >= staging.full.copy - 12);
  CHECK(bytes <= staging.full.copy + described);
  const std::string path = store.commit(1, "0123abcd", "{}");
  run_ranks(job.plan.mesh.world_size(), [&](Communicator& communicator) {
    MemoryOnly executor(job.plan, communicator.rank());
    const LoadedRank loaded{executor, job.plan, communicator.rank()};
    raise(taken.load, taken_by([&] {
            CHECK(checkpoint::verify(path).empty());
            const checkpoint::Checkpoint opened = checkpoint::open_checkpoint(path);
            load_weights(loaded, opened.tensors, path, false);
            load_states(loaded, opened.tensors, path);
          }));
  });
}

}  // namespace

TEST_CASE("drawing, saving and loading take what the plan says, to the byte where tensors are larger than a chunk") {
  const TinyJobs jobs;
  const std::vector<std::vector<std::string>> cases{{},
                                                    {"cluster.devices_per_node=2", "strategy=ddp"},
                                                    {"cluster.devices_per_node=2", "strategy=fsdp"},
                                                    {"cluster.devices_per_node=2", "strategy.pipeline.degree=2"}};
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (const bool full : {false, true}) {
      CAPTURE(i);
      CAPTURE(full);
      const CompiledJob job = large(jobs, cases[i]);
      const Staging staging = staging_of(job.plan, 1);
      Taken taken;
      measure(job, jobs.path(std::string(full ? "full" : "sharded") + std::to_string(i)), full, taken);
      CHECK(taken.draw.load() == staging.draw);
      const Staging::Save& save = full ? staging.full : staging.sharded;
      CHECK(taken.save.load() == save.in_step);
      CHECK(taken.behind.load() == save.copying + save.copy);
      CHECK(taken.load.load() == staging.load);
      CHECK(staging.full.in_step == 2 * kStagedElements * 4);
    }
}

TEST_CASE("columns of a matrix take no more than is said") {
  const TinyJobs jobs;
  const CompiledJob job = large(jobs, {"cluster.devices_per_node=2", "strategy.tensor.degree=2"});
  for (const bool full : {false, true}) {
    const Staging staging = staging_of(job.plan, 1);
    Taken taken;
    measure(job, jobs.path(full ? "full" : "sharded"), full, taken);
    CHECK(taken.draw.load() <= staging.draw);
    CHECK(taken.save.load() <= (full ? staging.full : staging.sharded).in_step);
    CHECK(taken.load.load() <= staging.load);
    CHECK(2 * taken.load.load() >= staging.load);
  }
}

TEST_CASE("states in int8 take no more than is said, whose blocks are loaded whole") {
  const TinyJobs jobs;
  const std::vector<std::vector<std::string>> cases{
      {}, {"cluster.devices_per_node=2", "strategy=fsdp"}, {"cluster.devices_per_node=2", "strategy.tensor.degree=2"}};
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (const bool full : {false, true}) {
      CAPTURE(i);
      CAPTURE(full);
      std::vector<std::string> overrides = cases[i];
      overrides.emplace_back("train.optimizer.states=int8");
      const CompiledJob job = large(jobs, overrides);
      const Staging staging = staging_of(job.plan, 1);
      Taken taken;
      measure(job, jobs.path(std::string(full ? "full" : "sharded") + std::to_string(i)), full, taken);
      const Staging::Save& save = full ? staging.full : staging.sharded;
      CHECK(taken.save.load() <= save.in_step);
      CHECK(taken.behind.load() <= save.copying + save.copy);
      CHECK(taken.load.load() <= staging.load);
      CHECK(2 * taken.load.load() >= staging.load);
    }
}

TEST_CASE("every thread draws a chunk") {
  const TinyJobs jobs;
  const CompiledJob job = large(jobs, {});
  MemoryOnly executor(job.plan, 0);
  const std::int64_t before = all_live;
  all_peak = before;
  draw_weights({executor, job.plan, 0}, 3, 2);
  CHECK(all_peak.load() - before <= staging_of(job.plan, 2).draw);
  CHECK(all_peak.load() - before > staging_of(job.plan, 1).draw / 2);
}
