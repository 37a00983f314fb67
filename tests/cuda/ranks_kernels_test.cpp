// Jobs of two ranks on emulated GPUs with the GPU's own kernels, against the CPU: that kernels, collectives, plan and
// executor belong together.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "tests/cuda/emulated_jobs.h"

using namespace trainer;
using tests::Trained;

TEST_CASE("two ranks with the GPU's own kernels give the CPU's losses within 2e-4") {
  const tests::TinyJobs jobs;
  const tests::Overrides same{"checkpoint.resume=none", "train.clip_norm=1.0", "train.batch.micro=2", "train.steps=6"};
  tests::Overrides alone = same;
  alone.push_back("strategy=ddp");
  TrainOptions options;
  options.threads = 1;
  const Trained cpu = tests::run(jobs.load("gpt2", "cpu", alone), {}, options);
  for (const char* strategy : {"ddp", "fsdp", "tensor", "pipeline"}) {
    CAPTURE(strategy);
    tests::Overrides over = same;
    over.push_back("strategy=" + std::string(strategy));
    const Trained gpu = run(tests::gpu_job(jobs, "gpt2", "gpu", over, 2), 2);
    REQUIRE(gpu.loss.size() == cpu.loss.size());
    for (std::size_t step = 0; step < cpu.loss.size(); ++step)
      CHECK(std::fabs(gpu.loss[step] - cpu.loss[step]) <= 2e-4 * cpu.loss[step]);
  }
}
