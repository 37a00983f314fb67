// The same job gives the same bits: twice, after a stop at any step, and after a signal. Whole checkpoints are
// compared, byte by byte.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/monitor/monitors.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

Overrides ranks(int number) {
  return {"cluster.devices_per_node=" + std::to_string(number), "strategy.data.kind=ddp",
          "strategy.data.bucket_mb=0.004", "train.batch.micro=2"};
}

bool same_bits(const Trained& a, const Trained& b) {
  return a.loss == b.loss && a.grad_norm == b.grad_norm &&
         files_of(a.report.checkpoint) == files_of(b.report.checkpoint);
}

std::vector<double> losses_of(const std::string& jsonl) {
  std::vector<double> losses;
  std::ifstream file(jsonl);
  for (std::string line; std::getline(file, line);)
    if (const auto json = nlohmann::json::parse(line); json.contains("loss")) losses.push_back(json["loss"]);
  return losses;
}

void damage(const std::string& path) {
  std::string contents = contents_of(path);
  contents[contents.size() / 2] = static_cast<char>(contents[contents.size() / 2] ^ 1);
  std::ofstream(path, std::ios::binary) << contents;
}

}  // namespace

TEST_CASE("a job trains to the same bits twice, and with scratch memory poisoned") {
  const TinyJobs jobs;
  int folder = 0;
  const Overrides larger{"model.with.dim=64", "train.batch.global=16",
                         "model.with.dropout=0.1"};  // activations worth several threads
  for (const char* threads : {"1", "2", "4"})
    for (int number : {1, 2}) {
      CAPTURE(std::string(threads));
      CAPTURE(number);
      const EnvironmentSetting setting("TRAINER_THREADS", threads);
      const auto trained = [&](const char* poison) {
        const EnvironmentSetting poisoned("TRAINER_POISON", poison);
        return run(jobs.load("gpt2", "run" + std::to_string(folder++), both(ranks(number), larger)));
      };
      const Trained once = trained("0");
      CHECK(same_bits(trained("0"), once));
      CHECK(same_bits(trained("1"), once));
      CHECK(std::isfinite(once.loss.back()));
    }
}

TEST_CASE("a run stopped after any step and resumed gives the bits of one that was not") {
  struct Case {
    int ranks;
    const char* format;
    const char* compute;
  };
  for (const Case& one :
       {Case{1, "full", "f32"}, Case{1, "full", "bf16"}, Case{2, "sharded", "f32"}, Case{2, "sharded", "bf16"}}) {
    CAPTURE(one.ranks);
    CAPTURE(std::string(one.compute));
    const TinyJobs jobs;
    const Overrides overrides =
        both(ranks(one.ranks), {"train.steps=10", std::string("checkpoint.format=") + one.format,
                                std::string("precision.compute=") + one.compute});
    const Trained whole = run(jobs.load("gpt2", "whole", both(overrides, {"checkpoint.every=1"})));
    REQUIRE(names_in(jobs.path("whole")).size() >= 10);
    for (int step = 1; step < 10; ++step) {
      CAPTURE(step);
      const std::string folder = "from" + std::to_string(step);
      copy_step(jobs, "whole", step, folder);
      const Trained resumed = run(jobs.load("gpt2", folder, overrides));
      CHECK(resumed.report.first_step == step);
      CHECK(resumed.loss == std::vector<double>(whole.loss.begin() + step, whole.loss.end()));
      CHECK(resumed.grad_norm == std::vector<double>(whole.grad_norm.begin() + step, whole.grad_norm.end()));
      CHECK(files_of(resumed.report.checkpoint) == files_of(whole.report.checkpoint));
    }
  }
}

TEST_CASE("resuming with another number of ranks goes on as before") {
  const TinyJobs jobs;
  const Overrides sharded{"train.steps=10", "checkpoint.format=sharded", "checkpoint.every=5"};
  for (const auto& [before, after] : {std::pair(1, 2), std::pair(2, 1), std::pair(2, 4), std::pair(4, 2)}) {
    CAPTURE(before);
    CAPTURE(after);
    const std::string pair = std::to_string(before) + "to" + std::to_string(after);
    const Trained whole = run(jobs.load("gpt2", "whole" + pair, both(ranks(before), sharded)));
    copy_step(jobs, "whole" + pair, 5, pair);
    const Trained resumed = run(jobs.load("gpt2", pair, both(ranks(after), sharded)));
    REQUIRE(resumed.loss.size() == 5);
    // As in ddp_test.cpp: sums of 64 terms in another order; 5 steps of an lr of at most 1e-2 through AdamW's eps of
    // 1e-3.
    const double gamma = 2 * 64 * kRoundoffF32;
    double norm = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(std::fabs(resumed.loss[i] - whole.loss[i + 5]) < static_cast<double>(i + 1) * gamma * whole.loss[i + 5]);
      norm = std::fmax(norm, whole.grad_norm[i + 5]);
    }
    CHECK(largest_difference(weights_of(resumed.report.checkpoint), weights_of(whole.report.checkpoint)) <
          5 * 1e-2 * 2 * gamma * norm / 1e-3);
  }
}

TEST_CASE("log.jsonl of a resumed run tells one history") {
  const TinyJobs jobs;
  const auto train_logged = [&](const std::string& folder, const Overrides& overrides) {
    const LoadedJob loaded = jobs.load("mlp", folder, overrides);
    Monitors monitors;
    monitors.push_back(jsonl_monitor(jobs.path(folder) + "/log.jsonl"));
    train(loaded, compiled(loaded), monitors, {});
  };
  train_logged("whole", {"train.steps=8"});
  train_logged("parts", {"train.steps=8", "checkpoint.every=3"});
  std::filesystem::remove_all(jobs.path("parts") + "/" + step_name(8));
  std::filesystem::remove_all(jobs.path("parts") + "/" + step_name(6));
  train_logged("parts", {"train.steps=8", "checkpoint.every=3"});
  const std::vector<double> whole = losses_of(jobs.path("whole") + "/log.jsonl");
  CHECK(whole.size() == 8);
  CHECK(losses_of(jobs.path("parts") + "/log.jsonl") == whole);
}

TEST_CASE("a damaged checkpoint is named and the one before it used; if all are damaged the run does not start anew") {
  const TinyJobs jobs;
  const Overrides overrides{"train.steps=6", "checkpoint.every=2"};
  const Trained whole = run(jobs.load("mlp", "run", overrides));
  const std::string last = jobs.path("run") + "/" + step_name(6), expected = jobs.path("expected");
  std::filesystem::copy(last, expected);
  damage(last + "/model.safetensors");
  const Trained resumed = run(jobs.load("mlp", "run", overrides));
  CHECK(resumed.report.first_step == 4);
  REQUIRE(!resumed.messages.empty());
  CHECK(contains(resumed.messages[0], step_name(6) + "/model.safetensors"));
  CHECK(files_of(last) == files_of(expected));

  for (int step : {2, 4, 6}) damage(jobs.path("run") + "/" + step_name(step) + "/optimizer.safetensors");
  const std::string message = message_of<DataError>([&] { run(jobs.load("mlp", "run", overrides)); });
  CHECK(contains(message, "no checkpoint in"));
  CHECK(contains(message, step_name(6) + "/optimizer.safetensors"));
  CHECK(contains(message, "another checkpoint.dir starts over"));
}

TEST_CASE("a signal ends a run after its step, saved, and the resumed run gives the same bits") {
  for (int number : {1, 2}) {
    CAPTURE(number);
    const TinyJobs jobs;
    const Trained whole = run(jobs.load("gpt2", "whole", ranks(number)));
    std::atomic<bool> stop = false;
    const Trained stopped =
        run(jobs.load("gpt2", "run", ranks(number)), [&](std::int64_t step) { stop = step == 2; }, {.stop = &stop});
    CHECK(stopped.report.stopped_by_signal);
    CHECK(stopped.report.steps == 3);
    CHECK(stopped.report.checkpoint == jobs.path("run") + "/" + step_name(3));
    const Trained resumed = run(jobs.load("gpt2", "run", ranks(number)));
    CHECK(resumed.report.first_step == 3);
    CHECK(!resumed.report.stopped_by_signal);
    CHECK(files_of(resumed.report.checkpoint) == files_of(whole.report.checkpoint));
  }
}
