// What a value that is not finite does to a run and to its checkpoints, under each train.on_nan. The data poison one
// batch, or the learning rate ruins the weights: a bad update leaves them finite, and only the next step shows it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/checkpoint/checkpoint.h"
#include "engine/core/error.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

const Overrides kWild{"train.optimizer.lr=1.0e20", "train.lr_schedule.name=constant",
                      "train.lr_schedule.warmup_steps=0", "train.optimizer.weight_decay=0"};

std::int32_t applied_updates(const std::string& path) {
  const auto saved = checkpoint::open_checkpoint(path);
  std::int32_t applied = 0;
  saved.tensors.read("applied_updates", 0, 1, &applied);
  return applied;
}

bool all_finite(const Tensors& tensors) {
  for (const auto& [name, values] : tensors)
    for (float value : values)
      if (!std::isfinite(value)) return false;
  return true;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a run that diverges saves nothing, keeps the last good checkpoint, and goes on from it") {
  for (int ranks : {1, 2}) {
    CAPTURE(ranks);
    const TinyJobs jobs;
    const Overrides often{"checkpoint.every=1", "checkpoint.keep=1", "strategy=ddp",
                          "cluster.devices_per_node=" + std::to_string(ranks)};
    run(jobs.load("mlp", "run", both(often, {"train.steps=4"})));
    const auto good = files_of(jobs.path("run/step-00000004"));
    const std::string message =
        message_of<NonFiniteError>([&] { run(jobs.load("mlp", "run", both(often, both(kWild, {"train.steps=9"})))); });
    CHECK(contains(message, "step 5: loss "));
    CHECK(contains(message, "The last good checkpoint is " + jobs.path("run/step-00000004")));
    CHECK(contains(message, "step-00000005.diverged"));
    CHECK(names_in(jobs.path("run")) == Names{"step-00000004", "step-00000005.diverged"});
    CHECK(files_of(jobs.path("run/step-00000004")) == good);
    const Trained mended = run(jobs.load("mlp", "run", both(often, {"train.steps=9"})));
    CHECK(mended.report.first_step == 4);
    CHECK(mended.report.steps == 9);
  }
}

TEST_CASE("the only checkpoint stays where no good one is known") {
  const TinyJobs jobs;
  const std::string message =
      message_of<NonFiniteError>([&] { run(jobs.load("mlp", "run", both(kWild, {"checkpoint.every=1"}))); });
  CHECK(contains(message, "There is no good checkpoint"));
  CHECK(names_in(jobs.path("run")) == Names{"step-00000001"});
}

TEST_CASE("keep removes the newest good checkpoint only once a later one is good") {
  for (const bool behind : {false, true}) {
    CAPTURE(behind);
    const TinyJobs jobs;
    std::vector<Names> seen;
    run(jobs.load(
            "mlp", "run",
            {"checkpoint.every=2", "checkpoint.keep=1", behind ? "checkpoint.behind=true" : "checkpoint.behind=false"}),
        [&](std::int64_t) {
          seen.push_back(names_in(jobs.path("run")));
          std::erase_if(seen.back(), [](const std::string& name) { return name.starts_with('.'); });  // who runs there
        });
    REQUIRE(seen.size() == 6);
    CHECK(names_in(jobs.path("run")) == Names{"step-00000004", "step-00000006"});
    if (behind) {  // a checkpoint appears when it is written, at the latest at the next save
      CHECK((seen[4] == Names{"step-00000002"} || seen[4] == Names{"step-00000004"}));
      continue;
    }
    CHECK(seen[2] == Names{"step-00000002"});
    CHECK(seen[3] == Names{"step-00000002"});
    CHECK(seen[4] == Names{"step-00000004"});
  }
}

TEST_CASE("what is good is known again after a kill") {
  const TinyJobs jobs;
  const Overrides often{"checkpoint.every=1", "checkpoint.keep=null"};
  run(jobs.load("mlp", "run", both(often, {"train.steps=4"})));
  // As if killed after the save of step 4, before a step from it: its first step diverges, and it is set aside.
  const Overrides poisoned = both(both(often, table_of(jobs, "poison.csv", 9, {0, 1, 2, 3, 4})),
                                  {"checkpoint.keep=1", "checkpoint.accept=[data]", "train.steps=9"});
  const std::string message = message_of<NonFiniteError>([&] { run(jobs.load("mlp", "run", poisoned)); });
  CHECK(contains(message, "The last good checkpoint is " + jobs.path("run/step-00000003")));
  CHECK(names_in(jobs.path("run")) ==
        Names{"step-00000001", "step-00000002", "step-00000003", "step-00000004.diverged"});
}

TEST_CASE("weights that are not finite are not saved, although no step showed them") {
  for (const char* format : {"full", "sharded"}) {
    CAPTURE(std::string(format));
    const TinyJobs jobs;
    const LoadedJob loaded =
        jobs.load("mlp", "run",
                  {"train.steps=1", "train.optimizer={name: sgd, lr: 3.0e38, weight_decay: 100}",
                   "train.lr_schedule={name: constant, warmup_steps: 0}", std::string("checkpoint.format=") + format,
                   "cluster.devices_per_node=2", "strategy=fsdp"});
    const std::string message = message_of<NonFiniteError>([&] { run(loaded); });
    CHECK(contains(message, "after 1 steps: the weight "));
    CHECK(contains(message, "nothing was saved"));
    CHECK(names_in(jobs.path("run")).empty());
  }
}

TEST_CASE("skip leaves out the update of a poisoned batch and nothing else") {
  for (int ranks : {1, 2}) {
    CAPTURE(ranks);
    const TinyJobs jobs;
    const Trained trained = run(
        jobs.load("mlp", "run",
                  both(table_of(jobs, "poison.csv", 6, {2, 3}),
                       {"train.on_nan=skip", "strategy=ddp", "cluster.devices_per_node=" + std::to_string(ranks)})));
    CHECK(trained.skipped == std::vector<std::int64_t>{2, 3});
    CHECK(trained.report.skipped_steps == 2);
    CHECK(trained.loss.size() == 6);
    CHECK(applied_updates(trained.report.checkpoint) == 4);
    CHECK(all_finite(tensors_of(trained.report.checkpoint)));
    REQUIRE(trained.messages.size() == 1);
    CHECK(contains(trained.messages[0], "step 2: loss "));
    CHECK(contains(trained.messages[0], "the first tensor that is not finite is "));
  }
}

TEST_CASE(
    "rollback goes on from the last good checkpoint as if the batches since had not been there, under any strategy") {
  const std::vector<std::pair<const char*, std::string>> strategies{
      {"1", "ddp"},
      {"2", "{data: {kind: zero1, compression: int8}}"},
      {"2", "fsdp"},
      {"2", "{data: {kind: local_sgd, every: 2}}"},
      {"2", "{data: {kind: local_sgd, every: 2, outer: {lr: 0.7, momentum: 0.9, nesterov: true}}}"},
      {"2", "{data: {kind: local_sgd, every: 2, delayed: true}}"},
  };
  for (const auto& [ranks, strategy] : strategies) {
    CAPTURE(strategy);
    const TinyJobs jobs;
    const Overrides common{"strategy=" + strategy, "cluster.devices_per_node=" + std::string(ranks),
                           "checkpoint.every=2", "checkpoint.keep=1", "train.steps=8"};
    // The step from checkpoint 4 is the poisoned one: it is not good, and the run goes back to 2.
    const Trained rolled = run(jobs.load(
        "mlp", "rolled", both(both(common, table_of(jobs, "poison.csv", 12, {4})), {"train.on_nan=rollback"})));
    const Trained clean = run(jobs.load("mlp", "clean", both(common, table_of(jobs, "clean.csv", 12, {}, {2, 3, 4}))));
    CHECK(rolled.report.rollbacks == 1);
    CHECK(rolled.report.steps == 8);
    CHECK(tensors_of(rolled.report.checkpoint) == tensors_of(clean.report.checkpoint));
    CHECK(std::vector<double>(rolled.loss.end() - 6, rolled.loss.end()) ==
          std::vector<double>(clean.loss.begin() + 2, clean.loss.end()));
    CHECK(names_in(jobs.path("rolled")) == Names{"step-00000004.diverged", "step-00000006", "step-00000008"});
  }
}

TEST_CASE("a run that is resumed after a rollback takes the batches that one without a stop takes") {
  const TinyJobs jobs;
  const Overrides job = both(table_of(jobs, "poison.csv", 12, {4}),
                             {"train.on_nan=rollback", "checkpoint.every=2", "checkpoint.keep=null", "train.steps=8"});
  const Trained whole = run(jobs.load("mlp", "whole", job));
  std::filesystem::create_directories(jobs.path("part"));
  std::filesystem::copy(jobs.path("whole/step-00000006"), jobs.path("part/step-00000006"));
  const Trained resumed = run(jobs.load("mlp", "part", job));
  CHECK(resumed.report.first_step == 6);
  CHECK(tensors_of(resumed.report.checkpoint) == tensors_of(whole.report.checkpoint));
}

TEST_CASE("a rollback before the first checkpoint goes back to the start, and after three the run stops") {
  const TinyJobs jobs;
  const Trained once = run(
      jobs.load("mlp", "once", both(table_of(jobs, "one.csv", 12, {1}), {"train.on_nan=rollback", "train.steps=5"})));
  CHECK(once.report.rollbacks == 1);
  CHECK(once.report.steps == 5);
  const Overrides hopeless =
      both(table_of(jobs, "many.csv", 12, {1, 3, 5, 7, 9, 11}), {"train.on_nan=rollback", "train.steps=5"});
  const std::string message = message_of<NonFiniteError>([&] { run(jobs.load("mlp", "never", hopeless)); });
  CHECK(contains(message, "already gone back 3 times"));
  CHECK(names_in(jobs.path("never")) == Names{"step-00000000"});
}

TEST_CASE("a checkpoint of weights that are not finite is neither evaluated nor sampled") {
  // No run saves such weights any more; this is the file of a good checkpoint with one element replaced.
  const TinyJobs jobs;
  const Trained trained = run(jobs.load("mlp", "run"));
  std::string file = contents_of(trained.report.checkpoint + "/model.safetensors");
  const float nan = std::nanf("");
  std::copy_n(reinterpret_cast<const char*>(&nan), sizeof nan, file.end() - 8);
  jobs.write("nan.safetensors", file);
  const LoadedJob loaded = jobs.load("mlp", "run", {"data.val={fraction: 0.5}"});
  const std::string message = message_of<DataError>(
      [&] { evaluate(loaded, compiled(loaded, Purpose::evaluate), jobs.path("nan.safetensors"), 0); });
  CHECK(contains(message, "nan.safetensors: the weight "));
  CHECK(contains(message, "is nan"));
}
