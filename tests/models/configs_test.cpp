// Every job of configs/ becomes a plan that fits, and loading that plan allocates exactly the bytes that it states.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "engine/compile/compile.h"
#include "engine/run/executor.h"
#include "engine/train/ranks.h"
#include "kernels/cpu/table.h"
#include "tests/goldens/golden.h"

using namespace trainer;

TEST_CASE("the peak that a plan states is what loading it allocates, for every job of configs/") {
  const std::string configs = goldens::folder() + "/../../configs";
  int jobs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(configs)) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path().filename().string());
    const LoadedJob loaded = load_job(entry.path().string(), {}, {.configs_dir = configs});
    const int ranks = world_size_of(loaded.job), threads = threads_per_rank(ranks);
    const kernels::cpu::CpuTarget target({.isa = kernels::cpu::detect_isa(), .threads = threads});
    const CompiledJob compiled = compile(
        loaded, {.target = &target, .memory_bytes = std::int64_t{16} << 30, .threads = threads}, Purpose::train);
    CHECK(compiled.fits);
    std::int64_t planned = 0, allocated = 0;
    for (const MemoryReport& report : compiled.memory) planned = std::max(planned, report.peak_bytes);
    std::mutex mutex;
    run_ranks(ranks, [&](Communicator& communicator) {
      const auto device = cpu_device(threads);
      const auto executor = device->load(compiled.plan, communicator.rank(), communicator);
      const std::lock_guard lock(mutex);
      allocated = std::max(allocated, executor->allocated_bytes());
    });
    CHECK(planned == allocated);
    ++jobs;
  }
  CHECK(jobs >= 9);
}
