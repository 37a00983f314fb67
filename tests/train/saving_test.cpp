// Saving behind the step against saving in it: the same files, names and evaluations, whatever the run does meanwhile.
#include <doctest/doctest.h>

#include <stdexcept>

#include "engine/checkpoint/checkpoint.h"
#include "engine/core/error.h"
#include "engine/train/checkpoint_plan.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

struct Case {
  const char* job;
  Overrides overrides;
};

const std::vector<Case> kCases{
    {"gpt2", {}},
    {"gpt2", {"cluster.devices_per_node=2", "strategy=ddp", "checkpoint.format=full"}},
    {"gpt2", {"cluster.devices_per_node=2", "strategy=fsdp", "checkpoint.format=sharded"}},
    {"llama", {"cluster.devices_per_node=2", "strategy.pipeline.degree=2", "checkpoint.format=sharded"}}};

}  // namespace

TEST_CASE("checkpoints written behind the step have the bits of those written in it") {
  for (const Case& one : kCases) {
    const TinyJobs jobs;
    const Overrides all = both(one.overrides, {"train.steps=5", "checkpoint.keep=null", "checkpoint.every=2"});
    const Trained behind = run(jobs.load(one.job, "behind", all)),
                  in_step = run(jobs.load(one.job, "in_step", both(all, {"checkpoint.behind=false"})));
    CHECK(behind.loss == in_step.loss);
    REQUIRE(names_in(jobs.path("behind")) == names_in(jobs.path("in_step")));
    const auto saved = checkpoint::list_checkpoints(jobs.path("behind"));
    REQUIRE(saved.size() == 3);
    for (const checkpoint::CheckpointPath& each : saved)
      CHECK(files_of(each.path) == files_of(jobs.path("in_step") + "/" + step_name(each.step)));
  }
}

TEST_CASE("evaluations that decide what is kept see the same and keep the same") {
  for (const char* ranks : {"cluster.devices_per_node=1", "cluster.devices_per_node=2"}) {
    const TinyJobs jobs;
    const Overrides all{ranks,
                        "strategy=ddp",
                        "data.val=" + jobs.path("table.csv"),
                        "eval.every=3",
                        "checkpoint.keep_best=true",
                        "checkpoint.keep=1",
                        "checkpoint.every=2",
                        "train.steps=11"};
    const Trained behind = run(jobs.load("mlp", "behind", all)),
                  in_step = run(jobs.load("mlp", "in_step", both(all, {"checkpoint.behind=false"})));
    REQUIRE(behind.evaluations.size() == in_step.evaluations.size());
    REQUIRE(behind.evaluations.size() >= 4);
    for (std::size_t i = 0; i < behind.evaluations.size(); ++i)
      CHECK(behind.evaluations[i].val_loss == in_step.evaluations[i].val_loss);
    CHECK(names_in(jobs.path("behind")) == names_in(jobs.path("in_step")));
  }
}

TEST_CASE("a run that fails in the step after a save still commits what was saved, on every number of ranks") {
  for (const Case& one : kCases) {
    const TinyJobs jobs;
    const Overrides all = both(one.overrides, {"checkpoint.every=2"});
    const auto fails = [](std::int64_t step) {
      if (step == 2) throw std::runtime_error("a monitor fails");  // steps are counted from 0: the third
    };
    CHECK_THROWS_WITH_AS(run(jobs.load(one.job, "run", all), fails), "a monitor fails", std::runtime_error);
    REQUIRE(names_in(jobs.path("run")) == std::vector<std::string>{step_name(2)});
    CHECK(checkpoint::verify(jobs.path("run") + "/" + step_name(2)).empty());
    const Trained whole = run(jobs.load(one.job, "whole", all)), more = run(jobs.load(one.job, "run", all));
    CHECK(more.report.first_step == 2);
    CHECK(files_of(more.report.checkpoint) == files_of(whole.report.checkpoint));
  }
}

TEST_CASE("a copy that does not fit into memory leaves saving in the step, and the plan says why") {
  const TinyJobs jobs;
  const LoadedJob loaded = jobs.load("gpt2", "run");
  CompiledJob job = compiled(loaded);
  const CheckpointPlan behind = checkpoint_plan(loaded.job, job);
  CHECK(behind.behind);
  CHECK(behind.copy > 0);
  CHECK(behind.why_in_step.empty());
  job.host_bytes = behind.saving;
  CHECK(checkpoint_plan(loaded.job, job).behind);
  --job.host_bytes;
  const CheckpointPlan in_step = checkpoint_plan(loaded.job, job);
  CHECK_FALSE(in_step.behind);
  CHECK(in_step.copy == 0);
  CHECK(in_step.saving < behind.saving);
  CHECK(contains(in_step.why_in_step, "host memory"));
  CHECK(run(loaded, job).report.steps == 6);
  const LoadedJob asked = jobs.load("gpt2", "run", {"checkpoint.behind=false"});
  CHECK_FALSE(checkpoint_plan(asked.job, compiled(asked)).behind);
  CHECK(checkpoint_plan(asked.job, compiled(asked)).why_in_step.empty());
}

TEST_CASE("a processor's memory holds the copy beside the plan") {
  const TinyJobs jobs;
  const CompiledJob job = compiled(jobs.load("gpt2", "run"));
  CHECK(job.host_bytes == job.limit_bytes - job.peak_bytes());
}
