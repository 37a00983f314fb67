// A run goes on under any other strategy and number of ranks: it loads the very bits that were saved, and its losses
// are those of the run that was not interrupted.
//
// Bounds. Strategies change the order of sums and nothing else. With u the unit roundoff of f32, a sum of n <= 64 terms
// errs by at most γ = 2 n u relative to its terms (both orders err). From the tokens to a gradient and on to the next
// step's loss a value passes at most D = 48 nodes of this model that sum (2 layers of 2 norms, 4 products, attention's
// 3; the head and the loss; and as many back), each of which adds γ and passes on what it got: D γ = 3.7e-4 of the loss
// a step.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/core/error.h"
#include "engine/job/job.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr int kSaved = 3, kStepsOfAll = 6;
constexpr double kGamma = 2 * 64 * kRoundoffF32, kDepth = 48;

struct Strategy {
  const char* name;
  Overrides overrides;
};

const std::vector<Strategy> kStrategies{
    {"ddp", {"cluster.devices_per_node=4", "strategy.data.kind=ddp", "strategy.data.bucket_mb=0.004"}},
    {"zero1", {"cluster.devices_per_node=2", "strategy.data.kind=zero1"}},
    {"fsdp", {"cluster.devices_per_node=4", "strategy.data={kind: fsdp, sharding: full_shard}"}},
    {"tensor", {"cluster.devices_per_node=2", "strategy.tensor.degree=2"}},
    {"pipeline", {"cluster.devices_per_node=2", "strategy.pipeline={degree: 2, schedule: 1f1b}"}},
    {"3d",
     {"cluster.devices_per_node=8", "strategy.data.kind=fsdp", "strategy.tensor.degree=2",
      "strategy.pipeline.degree=2"}},
};

Overrides all(const std::vector<Overrides>& parts) {
  Overrides joined;
  for (const Overrides& part : parts) joined.insert(joined.end(), part.begin(), part.end());
  return joined;
}

// An odd vocabulary, so that rows are padded; a tied head, which stages share; and a scheduled step that must not begin
// anew.
Overrides common(int step, const char* format) {
  return {"train.steps=" + std::to_string(kStepsOfAll),
          "train.batch.micro=1",
          "train.clip_norm=0.5",
          "model.with.dropout=0.1",
          "model.with.vocab=33",
          "checkpoint.every=" + std::to_string(step),
          std::string("checkpoint.format=") + format};
}

std::string step_path(const TinyJobs& jobs, const std::string& folder, int step) {
  return jobs.path(folder) + "/step-0000000" + std::to_string(step);
}

void check_continues(const Trained& resumed, const Trained& whole, std::size_t first) {
  REQUIRE(resumed.loss.size() == whole.loss.size() - first);
  for (std::size_t i = 0; i < resumed.loss.size(); ++i) {
    CAPTURE(i);
    const double bound = static_cast<double>(i + 1) * kDepth * kGamma;
    CHECK(std::fabs(resumed.loss[i] - whole.loss[first + i]) < bound * whole.loss[first + i]);
    CHECK(std::fabs(resumed.grad_norm[i] - whole.grad_norm[first + i]) < 2 * bound * whole.grad_norm[first + i]);
  }
}

}  // namespace

TEST_CASE("any strategy resumes what any other saved: the same bits, and the same losses") {
  const TinyJobs jobs;
  std::vector<Trained> wholes;
  for (std::size_t i = 0; i < kStrategies.size(); ++i)
    wholes.push_back(run(jobs.load("gpt2", kStrategies[i].name,
                                   all({common(kSaved, i % 2 == 0 ? "sharded" : "full"), kStrategies[i].overrides}))));
  for (std::size_t from = 0; from < kStrategies.size(); ++from)
    for (std::size_t to = 0; to < kStrategies.size(); ++to) {
      const std::string pair = std::string(kStrategies[from].name) + " to " + kStrategies[to].name,
                        path = step_path(jobs, kStrategies[from].name, kSaved);
      CAPTURE(pair);
      const Overrides resume = all({common(kStepsOfAll, to % 2 == 0 ? "full" : "sharded"),
                                    kStrategies[to].overrides,
                                    {"checkpoint.resume=" + path}});
      // No step: what is loaded is saved again.
      const Trained loaded =
          run(jobs.load("gpt2", pair + " again", all({resume, {"train.steps=" + std::to_string(kSaved)}})));
      CHECK(loaded.loss.empty());
      CHECK(tensors_of(loaded.report.checkpoint) == tensors_of(path));
      const Trained resumed = run(jobs.load("gpt2", pair, resume));
      CHECK(resumed.report.first_step == kSaved);
      check_continues(resumed, wholes[from], kSaved);
      if (from != to) continue;
      CHECK(resumed.loss == std::vector<double>(wholes[to].loss.begin() + kSaved, wholes[to].loss.end()));
      CHECK(tensors_of(resumed.report.checkpoint) == tensors_of(wholes[to].report.checkpoint));
    }
}

TEST_CASE("what ranks keep for themselves is saved: resumed, they end with the bits of a run that was not stopped") {
  const TinyJobs jobs;
  const std::vector<Strategy> strategies{
      {"int8", {"strategy.data={kind: ddp, compression: int8}"}},
      {"int8 sharded", {"strategy.data={kind: zero1, compression: int8}"}},
      {"top_k", {"strategy.data={kind: ddp, compression: {top_k: 0.05}}"}},
      {"bf16", {"strategy.data={kind: zero1, compression: bf16}"}},
      {"local_sgd", {"strategy.data={kind: local_sgd, every: 3}"}},
      {"outer", {"strategy.data={kind: local_sgd, every: 3, outer: {lr: 0.7, momentum: 0.9}}"}},
      {"delayed", {"strategy.data={kind: local_sgd, every: 3, delayed: true}"}},
  };
  for (const Strategy& strategy : strategies)
    for (const char* format : {"full", "sharded"}) {
      const std::string name = std::string(strategy.name) + " " + format;
      CAPTURE(name);
      const Overrides overrides = all({common(kSaved, format), strategy.overrides, {"cluster.devices_per_node=2"}});
      const Trained whole = run(jobs.load("gpt2", name, overrides));
      const Trained resumed = run(jobs.load("gpt2", name + " resumed",
                                            all({overrides, {"checkpoint.resume=" + step_path(jobs, name, kSaved)}})));
      CHECK(resumed.loss == std::vector<double>(whole.loss.begin() + kSaved, whole.loss.end()));
      CHECK(files_of(resumed.report.checkpoint) == files_of(whole.report.checkpoint));
      // On one rank, where there is nothing to reduce, and nothing of it is lost.
      const Trained alone = run(jobs.load(
          "gpt2", name + " alone",
          all({common(kSaved, format), {"strategy=ddp", "checkpoint.resume=" + step_path(jobs, name, kSaved)}})));
      CHECK(alone.loss.size() == kStepsOfAll - kSaved);
    }
}

TEST_CASE("the same job started again on more or fewer devices goes on by itself, with the same samples and schedule") {
  const TinyJobs jobs;
  const auto job = [&](const char* folder, int devices, int steps) {
    return jobs.load("gpt2", folder,
                     all({common(2, "sharded"),
                          {"strategy.data.kind=fsdp", "cluster.devices_per_node=" + std::to_string(devices),
                           "train.steps=" + std::to_string(steps)}}));
  };
  const Trained whole = run(job("whole", 2, 8));
  // The schedule spans the steps of the whole run, which a signal cuts into runs on other devices.
  std::int64_t first = 0;
  for (const int devices : {4, 1, 2, 8}) {
    CAPTURE(devices);
    std::atomic<bool> stop = false;
    const Trained part =
        run(job("parts", devices, 8), [&](std::int64_t step) { stop = step == first + 1; }, {.stop = &stop});
    CHECK(part.report.first_step == first);
    REQUIRE(part.loss.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t step = static_cast<std::size_t>(first) + i;
      CHECK(std::fabs(part.loss[i] - whole.loss[step]) <
            static_cast<double>(step + 1) * kDepth * kGamma * whole.loss[step]);
    }
    first += 2;
  }
  const std::string message = tests::message_of<JobError>([&] { run(job("parts", 3, 8)); });
  CHECK(contains(message, "8 samples do not divide over 3 data ranks"));
  CHECK(contains(message, "6"));
  CHECK(contains(message, "9"));
}
