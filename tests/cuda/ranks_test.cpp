// Jobs of several ranks through the executor of GPUs and the NCCL communicator, on emulated GPUs and with the CPU's
// kernels: under every strategy the training of one rank, in whatever order streams and ranks go on.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "engine/core/error.h"
#include "tests/cuda/emulated_jobs.h"
#include "tests/train/mixture_jobs.h"

namespace trainer::ranks_test {

using tests::TinyJobs;
using tests::Trained;

namespace {

const TinyJobs& jobs() {
  static const TinyJobs one;
  return one;
}

struct Case {
  const char* model;
  int ranks;
  tests::Overrides overrides;
};

const std::vector<Case> kCases{
    {"gpt2", 2, {"strategy=ddp"}},
    {"gpt2", 4, {"strategy={data: {kind: ddp, bucket_mb: 0.01}}"}},
    {"gpt2", 4, {"strategy=zero1"}},
    {"llama", 4, {"strategy=zero2", "train.batch.micro=1"}},
    {"gpt2", 4, {"strategy=zero3"}},
    {"llama", 2, {"strategy=fsdp"}},
    {"gpt2", 4, {"strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2, prefetch: 2}}"}},
    {"gpt2", 2, {"strategy=tensor"}},
    {"llama", 2, {"strategy={tensor: {degree: 2, sequence_parallel: true}}"}},
    {"gpt2", 2, {"strategy=pipeline"}},
    {"gpt2", 2, {"strategy={pipeline: {degree: 2, schedule: zb_h1}}"}},
    {"gpt2", 2, {"strategy={pipeline: {degree: 2, schedule: interleaved, virtual_stages: 2}}", "model.with.layers=4"}},
    {"gpt2", 4, {"strategy={data: {kind: fsdp}, tensor: {degree: 2}}"}},
    {"gpt2", 4, {"strategy={data: {kind: zero1}, pipeline: {degree: 2}}"}},
    {"gpt2", 4, {"strategy={tensor: {degree: 2}, pipeline: {degree: 2}}", "model.with.vocab=33"}},
    {"gpt2", 4, {"strategy={data: {kind: fsdp, secondary: 2}}", "train.batch.micro=1"}},
    {"gpt2", 2, {"strategy={data: {kind: zero1}, offload: {optimizer: host, update: host}}"}},
    {"llama",
     4,
     {"strategy={data: {kind: fsdp}, offload: {optimizer: host, gradients: host, parameters: host, update: host}}",
      "train.batch.global=8"}},
    {"gpt2", 2, {"strategy={pipeline: {degree: 2}, offload: {optimizer: host, update: host}}"}},
    {"gpt2",
     4,
     {"strategy={data: {kind: zero3, secondary: 2}, offload: {optimizer: host, parameters: host, update: host}}",
      "train.batch.micro=1"}},
    {"llama",
     4,
     {"strategy={data: {kind: zero2}, tensor: {degree: 2}, offload: {optimizer: host, update: host}}",
      "precision.compute=bf16"}},
    {"llama", 2, {"strategy={tensor: {degree: 2, sequence_parallel: true, keep: shard}}"}},
    {"llama", 2, {"strategy={tensor: {degree: 2, sequence_parallel: true, overlap: true}}", "train.batch.micro=1"}},
    {"gpt2", 4, {"strategy={tensor: {degree: 2, overlap: true}, pipeline: {degree: 2}}", "train.batch.micro=1"}},
    {"gpt2", 2, {"strategy={context: {degree: 2}}"}},
    {"llama", 4, {"strategy={data: {kind: fsdp}, context: {degree: 2, kind: ring}}"}},
    {"mixture", 2, {"strategy={data: {kind: zero1}, expert: {degree: 2}}"}},
    {"mixture", 4, {"strategy={expert: {degree: 2}, context: {degree: 2, kind: ring}}"}},
    {"mixture", 4, {"strategy={data: {kind: fsdp}, expert: {degree: 2}, tensor: {degree: 2}}"}},
    {"mixture", 4, {"strategy={expert: {degree: 2}, tensor: {degree: 2, sequence_parallel: true}}"}},
};

std::string text_of(const Case& one) {
  std::string text = one.model + (" on " + std::to_string(one.ranks));
  for (const std::string& word : one.overrides) text += " " + word;
  return text;
}

tests::GpuJob job_of(const Case& one, const std::string& folder) {
  tests::Overrides overrides{"checkpoint.resume=none", "train.clip_norm=1.0", "train.steps=10"};
  overrides.insert(overrides.end(), one.overrides.begin(), one.overrides.end());
  const bool mixture = one.model == std::string("mixture");
  if (mixture)
    overrides.push_back("model={graph: " + jobs().write("mixture.yaml", tests::attentive_mixture()) +
                        ", with: {bound: 4.0}}");
  return tests::gpu_job(jobs(), mixture ? "gpt2" : one.model, folder, overrides, one.ranks);
}

// The same model and micro-batches' sum on one rank.
Trained on_one(const Case& one) {
  Case alone = one;
  alone.ranks = 1;
  std::erase_if(alone.overrides, [](const std::string& word) { return word.starts_with("strategy"); });
  return run(job_of(alone, "one"));
}

// 2e-4 of the loss, of which a step's rounding is far away: sums over ranks in another order, 10 steps, each some 2^-24
// of the values.
constexpr double kBound = 2e-4;

void check_close(const Trained& one, const Trained& many) {
  REQUIRE(one.loss.size() == many.loss.size());
  for (std::size_t step = 0; step < one.loss.size(); ++step) {
    CHECK(std::fabs(many.loss[step] - one.loss[step]) <= kBound * one.loss[step]);
    CHECK(std::fabs(many.grad_norm[step] - one.grad_norm[step]) <= 10 * kBound * one.grad_norm[step]);
  }
}

}  // namespace

TEST_CASE("two and four ranks of GPUs train as one under every strategy, alike to the bit whatever the order") {
  for (const Case& one : kCases) {
    CAPTURE(text_of(one));
    const tests::GpuJob job = job_of(one, "many");
    const Trained alone = on_one(one), first = run(job, 0);
    check_close(alone, first);
    for (std::uint64_t order : {1, 5}) {
      const Trained again = run(job, order);
      CHECK(again.loss == first.loss);
      CHECK(again.grad_norm == first.grad_norm);
    }
  }
}

TEST_CASE("GPUs that train apart come together in parts, whole and in 8 bits, as processors do") {
  for (const std::string compression : {"none", "int8"}) {
    CAPTURE(compression);
    const std::string strategy =
        "strategy={data: {kind: local_sgd, every: 4, parts: 3, outer: {compression: " + compression + "}}}";
    const tests::GpuJob job = tests::gpu_job(jobs(), "gpt2", "apart", {"checkpoint.resume=none", strategy}, 2);
    const Trained here = tests::run(tests::from_the_start(jobs().load(
        "gpt2", "processors",
        {"checkpoint.resume=none", strategy, "cluster.devices_per_node=2", "train.batch.micro=2", "train.steps=20"})));
    const Trained first = run(job, 0);
    check_close(here, first);
    const Trained again = run(job, 5);
    CHECK(again.loss == first.loss);
    CHECK(tests::tensors_of(again.report.checkpoint) == tests::tensors_of(first.report.checkpoint));
  }
}

// Rank 0 tells of a step while its GPU works on the next, and then the ranks ask each other who is to stop. Where the
// step after was started as well, it is not lost.
TEST_CASE("ranks of GPUs that are to stop end after the steps that they were given, and those are saved") {
  for (const std::string behind : {"false", "true"}) {
    CAPTURE(behind);
    const tests::Overrides overrides{"checkpoint.resume=none", "strategy=fsdp", "checkpoint.every=2",
                                     "checkpoint.behind=" + behind};
    const tests::GpuJob job = tests::gpu_job(jobs(), "gpt2", "stopped", overrides, 2);
    const Trained whole = run(tests::gpu_job(jobs(), "gpt2", "whole", overrides, 2));
    CHECK_FALSE(whole.report.stopped_by_signal);
    const auto last = static_cast<std::int64_t>(whole.loss.size()) - 1;
    for (const std::int64_t told : {std::int64_t{0}, std::int64_t{3}, last - 1, last}) {
      CAPTURE(told);
      std::atomic<bool> stop = false;
      const Trained stopped = run(job, 0, {.stop = &stop}, [&](std::int64_t step) { stop = step == told; });
      const std::int64_t steps = stopped.report.steps;
      CHECK(steps >= std::min(told + 2, last + 1));
      CHECK(steps <= std::min(told + 3, last + 1));
      if ((told + 2) % 2 == 0) CHECK(steps == std::min(told + 2, last + 1));  // a checkpoint is due
      CHECK(stopped.report.stopped_by_signal == (steps <= last));
      CHECK(stopped.loss == std::vector(whole.loss.begin(), whole.loss.begin() + steps));
      CHECK(stopped.report.checkpoint == jobs().path("stopped") + "/" + tests::step_name(steps));
    }
    CHECK(tests::tensors_of(whole.report.checkpoint) ==
          tests::tensors_of(jobs().path("stopped") + "/" + tests::step_name(last + 1)));
  }
}

TEST_CASE("a folder of checkpoints that goes away ends the ranks of GPUs") {
  const tests::GpuJob job = tests::gpu_job(
      jobs(), "gpt2", "left",
      {"checkpoint.resume=none", "strategy=ddp", "checkpoint.every=2", "checkpoint.behind=true", "train.steps=20"}, 2);
  const auto take_away = [](std::int64_t) {
    std::error_code ignored;  // the ranks write there meanwhile
    std::filesystem::remove_all(jobs().path("left"), ignored);
  };
  CHECK_THROWS(run(job, 0, {}, take_away));
}

TEST_CASE("GPUs send weights and gradients as codes of 8 bits as processors do, alike to the bit whatever the order") {
  for (const auto& [ranks, data] :
       {std::pair(2, "{kind: fsdp, gather: int8, prefetch: 2}"), std::pair(4, "{kind: zero3, reduce_dtype: int8}"),
        std::pair(4, "{kind: fsdp, secondary: 2, gather: int8}"),
        std::pair(4, "{kind: fsdp, sharding: hybrid_shard, replicate: 2, gather: int8, reduce_dtype: int8}"),
        std::pair(4, "{kind: ddp, compression: int8}, tensor: {degree: 2}"),
        std::pair(4, "{kind: ddp, compression: {top_k: 0.1}}, tensor: {degree: 2}")}) {
    CAPTURE(std::string(data));
    const tests::Overrides overrides{"checkpoint.resume=none", "strategy={data: " + std::string(data) + "}"};
    const tests::GpuJob job = tests::gpu_job(jobs(), "gpt2", "codes", overrides, ranks);
    tests::Overrides here = overrides;
    for (const std::string& word : {"cluster.devices_per_node=" + std::to_string(ranks), std::string("train.steps=20"),
                                    "train.batch.micro=" + std::to_string(job.compiled.batch.micro)})
      here.push_back(word);
    const Trained alone = tests::run(tests::from_the_start(jobs().load("gpt2", "processors", here)));
    const Trained first = run(job, 0);
    check_close(alone, first);
    const Trained again = run(job, 5);
    CHECK(again.loss == first.loss);
    CHECK(tests::tensors_of(again.report.checkpoint) == tests::tensors_of(first.report.checkpoint));
  }
}

TEST_CASE("captured steps with collectives are issued ones to the bit, and count the bytes that they send") {
  for (const Case& one : {kCases[5], kCases[14]}) {
    CAPTURE(text_of(one));
    const tests::GpuJob job = job_of(one, "many");
    const Trained captured = run(job, 3);
    const tests::EnvironmentSetting off("TRAINER_CUDA_GRAPH", "0");
    const Trained issued = run(job, 3);
    CHECK(captured.loss == issued.loss);
    CHECK(captured.report.bytes_sent == issued.report.bytes_sent);
    CHECK(captured.report.bytes_sent > 0);
    REQUIRE(captured.report.ranks.size() == static_cast<std::size_t>(one.ranks));
    for (const RankReport& rank : captured.report.ranks) CHECK(rank.allocated_bytes == rank.planned_bytes);
  }
}

TEST_CASE("stages with a loop for each pass of a chunk are those of the plan written out to the bit") {
  const tests::Overrides many{"train.batch={global: 32, micro: 1}", "train.steps=2"};
  for (Case one :
       {Case{"gpt2", 2, {"strategy={pipeline: {degree: 2, schedule: gpipe}}"}},
        Case{"gpt2",
             2,
             {"strategy={pipeline: {degree: 2, schedule: looped_bfs, virtual_stages: 2}}", "model.with.layers=4"}}}) {
    CAPTURE(text_of(one));
    one.overrides.insert(one.overrides.end(), many.begin(), many.end());
    const tests::GpuJob job = job_of(one, "looped");
    for (const Role& role : job.compiled.plan.roles) REQUIRE(role.program(ProgramKind::step)->loops.size() > 1);
    tests::GpuJob full = job;
    full.compiled = written_out(job.compiled);
    const Trained whole = run(full, 1);
    const auto check_same = [&](const Trained& looped) {
      CHECK(looped.loss == whole.loss);
      CHECK(looped.grad_norm == whole.grad_norm);
      CHECK(tests::files_of(looped.report.checkpoint)["model.safetensors"] ==
            tests::files_of(whole.report.checkpoint)["model.safetensors"]);
    };
    REQUIRE(whole.loss.size() == 2);
    for (const std::uint64_t order : {0, 2, 5}) check_same(run(job, order));
    const tests::EnvironmentSetting off("TRAINER_CUDA_GRAPH", "0");
    for (const std::uint64_t order : {0, 3}) check_same(run(job, order));
  }
}

TEST_CASE("a job of several GPUs evaluates, saves and goes on from what it saved under another strategy") {
  const tests::Overrides constant{"train.lr_schedule={name: constant}", "data.val={fraction: 0.2}",
                                  "eval={every: 10, batches: 2}"};
  const auto with = [&](tests::Overrides more) {
    more.insert(more.end(), constant.begin(), constant.end());
    return more;
  };
  const Trained whole =
      run(tests::gpu_job(jobs(), "gpt2", "whole", with({"checkpoint.resume=none", "strategy=fsdp"}), 2));
  CHECK(whole.evaluations.size() == 2);
  run(tests::gpu_job(jobs(), "gpt2", "part",
                     with({"checkpoint.resume=none", "strategy=fsdp", "train.steps=10", "checkpoint.format=sharded"}),
                     2));
  const Trained rest =
      run(tests::gpu_job(jobs(), "gpt2", "part", with({"strategy={tensor: {degree: 2}, pipeline: {degree: 2}}"}), 4));
  REQUIRE(rest.loss.size() == 10);
  for (std::size_t step = 0; step < 10; ++step)
    CHECK(std::fabs(rest.loss[step] - whole.loss[step + 10]) <= kBound * whole.loss[step + 10]);
  CHECK(std::fabs(*rest.report.val_loss - *whole.report.val_loss) <= kBound * *whole.report.val_loss);
}

TEST_CASE("a rank that diverges is named with its tensor, and all ranks end") {
  const tests::GpuJob job =
      tests::gpu_job(jobs(), "gpt2", "wild",
                     {"checkpoint.resume=none", "strategy=fsdp", "train.optimizer={name: sgd, lr: 1.0e+30}",
                      "train.lr_schedule={name: constant}"},
                     2);
  std::string message;
  try {
    run(job, 1);
  } catch (const NonFiniteError& error) {
    message = error.what();
  }
  CHECK(message.find("the first tensor that is not finite is") != std::string::npos);
}

}  // namespace trainer::ranks_test
