// Jobs of two ranks on emulated GPUs with the GPU's own kernels, against the CPU: that kernels, collectives, plan and
// executor belong together.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "tests/cuda/emulated_jobs.h"
#include "tests/temporary.h"

using namespace trainer;
using tests::Trained;

namespace {

const tests::Overrides kSame{"checkpoint.resume=none", "train.clip_norm=1.0", "train.batch.micro=2", "train.steps=6"};

tests::Overrides with(const std::string& change) {
  tests::Overrides all = kSame;
  all.push_back(change);
  return all;
}

/// Of one rank.
Trained on_cpu(const tests::TinyJobs& jobs) {
  TrainOptions options;
  options.threads = 1;
  return tests::run(jobs.load("gpt2", "cpu", with("strategy=ddp")), {}, options);
}

void check_losses(const Trained& gpu, const Trained& cpu) {
  REQUIRE(gpu.loss.size() == cpu.loss.size());
  for (std::size_t step = 0; step < cpu.loss.size(); ++step)
    CHECK(std::fabs(gpu.loss[step] - cpu.loss[step]) <= 2e-4 * cpu.loss[step]);
}

}  // namespace

TEST_CASE("two ranks with the GPU's own kernels give the CPU's losses within 2e-4") {
  const tests::TinyJobs jobs;
  const Trained cpu = on_cpu(jobs);
  for (const char* strategy : {"ddp", "fsdp", "tensor", "pipeline"}) {
    CAPTURE(strategy);
    check_losses(run(tests::gpu_job(jobs, "gpt2", "gpu", with("strategy=" + std::string(strategy)), 2), 2), cpu);
  }
}

// run() holds the bits of replicas to each other.
TEST_CASE("products of ranks are chosen by time, under tensor parallelism too, and replicas keep the same bits") {
  const tests::TinyJobs jobs;
  const Trained cpu = on_cpu(jobs);
  for (const char* strategy : {"tensor", "pipeline"}) {
    CAPTURE(strategy);
    const tests::TemporaryFolder cache;
    const tests::EnvironmentSetting tune("TRAINER_CUDA_TUNE", "1"), folder("TRAINER_CACHE", cache.path());
    check_losses(run(tests::gpu_job(jobs, "gpt2", "gpu", with("strategy=" + std::string(strategy)), 2), 2), cpu);
    CHECK(std::filesystem::exists(cache.path("products")));
  }
}
