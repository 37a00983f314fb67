// Jobs of configs/ on real data: they learn what is known to be learnable. Data is found through TRAINER_TEST_DATA;
// without it the cases say that they were skipped.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "engine/train/train.h"
#include "kernels/cpu/table.h"
#include "tests/goldens/golden.h"
#include "tests/temporary.h"

using namespace trainer;

namespace {

/// Path of a file of the test data, or "" (and a message) where there is none.
std::string data_file(const std::string& name) {
  const char* folder = std::getenv("TRAINER_TEST_DATA");
  if (folder != nullptr && std::filesystem::exists(std::string(folder) + "/" + name))
    return std::string(folder) + "/" + name;
  MESSAGE("SKIPPED: no " << name << " (TRAINER_TEST_DATA names the folder)");
  return {};
}

RunReport run(const std::string& job, std::vector<std::string> overrides) {
  const tests::TemporaryFolder folder;
  overrides.push_back("checkpoint.dir=" + folder.path("run"));
  overrides.push_back("log.jsonl=" + folder.path("log.jsonl"));
  const std::string configs = goldens::folder() + "/../../configs";
  const LoadedJob loaded = load_job(configs + "/" + job, overrides, {.configs_dir = configs});
  const int threads = threads_per_rank(world_size_of(loaded.job));
  const kernels::cpu::CpuTarget target({.isa = kernels::cpu::detect_isa(), .threads = threads});
  return train(
      loaded,
      compile(loaded, {.target = &target, .memory_bytes = std::int64_t{8} << 30, .threads = threads}, Purpose::train),
      {}, {});
}

}  // namespace

TEST_CASE("an MLP reads more than 95% of held-out handwritten digits") {
  const std::string data = data_file("digits.csv");
  if (data.empty()) return;
  const RunReport report = run("digits.yaml", {"data.train=" + data});
  REQUIRE(report.val_accuracy.has_value());
  MESSAGE("validation accuracy " << *report.val_accuracy);
  CHECK(*report.val_accuracy > 0.95);
}

// The whole run takes two minutes on two slow cores: `tools/test.sh --long` asks for it.
TEST_CASE("nanoGPT's job for a CPU reaches its validation loss on Tiny Shakespeare, a half of it most of the way") {
  const std::string data = data_file("tinyshakespeare.txt");
  if (data.empty()) return;
  const bool whole = std::getenv("TRAINER_TEST_LONG") != nullptr;
  std::vector<std::string> overrides{"data.train=" + data};
  if (!whole) overrides.emplace_back("train.steps=1000");
  const RunReport report = run("nanogpt-shakespeare.yaml", overrides);
  REQUIRE(report.val_loss.has_value());
  MESSAGE("validation loss " << *report.val_loss << ", " << report.tokens_per_s << " tokens/s");
  CHECK(*report.val_loss < (whole ? 1.90 : 2.15));  // nanoGPT's README reports 1.88
}
