// run: what it logs, saves, traces and reports, and how it stops.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/tools/workplace.h"

namespace trainer::run_command_test {

using nlohmann::json;
using namespace trainer::tests;

TEST_CASE("run trains, logs, saves and reports") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml", "--json"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const json report = parsed(outcome);
  CHECK(has_keys(report, {"plan_hash", "strategy", "world_size", "steps", "loss", "val_loss", "tokens_per_s", "step_ms",
                          "startup_ms", "planned_peak_bytes", "allocated_bytes", "checkpoint"}));
  CHECK(has_keys(report["step_ms"], {"median", "p95"}));
  CHECK(report["steps"] == 6);
  CHECK(report["world_size"] == 1);
  CHECK(report["planned_peak_bytes"] == report["allocated_bytes"]);
  CHECK(report["startup_ms"].get<double>() > 0);
  CHECK(report["checkpoint"] == "runs/step-00000006");
  CHECK(report["plan_hash"] == parsed(in({"plan", "job.yaml", "--json"}))["hash"]);

  const std::vector<json> lines = lines_of(in.path("logs/log.jsonl"));
  REQUIRE(lines.size() == 9);  // the start, six steps, two evaluations
  CHECK(lines[0]["event"] == "start");
  CHECK(lines[0]["run"] == report["run_id"]);
  CHECK(lines[0]["plan_hash"] == report["plan_hash"]);
  CHECK(keys_of(lines[1]) == std::set<std::string>{"step", "loss", "lr", "grad_norm", "tokens", "step_ms",
                                                   "tokens_per_s", "time", "samples", "epoch", "memory_bytes", "mfu"});
  CHECK(lines[1]["tokens"] == 32);
  CHECK(lines[2]["samples"] == 8);
  CHECK(lines[2]["epoch"].get<double>() > 0);
  CHECK(lines[1]["memory_bytes"] == report["allocated_bytes"]);
  CHECK(lines[4]["step"] == 3);
  CHECK(has_keys(lines[4], {"val_loss"}));
  CHECK(lines[7]["loss"] == report["loss"]);
  CHECK(lines[8]["val_loss"] == report["val_loss"]);

  for (const char* part : {"parameters", "strategy:", "memory:", "step 1/6: loss", "step 6/6: loss", "validation loss",
                           "saved runs/step-00000006"})
    CHECK(contains(outcome.err, part));
  CHECK(std::filesystem::exists(in.path("runs/step-00000002")));
  CHECK_FALSE(std::filesystem::is_empty(in.path("logs/tb")));
}

TEST_CASE("what auto chose can be pasted into the job and gives the same plan") {
  const Workplace in;
  const json chosen = parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy=auto", "--json"}));
  REQUIRE(chosen["alternatives"].size() > 3);
  CHECK(chosen["alternatives"][0]["strategy"]["data"]["kind"] == chosen["strategy"]["data"]["kind"]);
  CHECK_FALSE(chosen["alternatives"][0].contains("rejected"));
  for (std::size_t i = 1; i < chosen["alternatives"].size(); ++i)
    CHECK(has_keys(chosen["alternatives"][i], {"strategy", "predicted_ms", "peak_bytes", "rejected"}));
  const json pasted =
      parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy=" + chosen["strategy"].dump(),
                 "train.batch.micro=" + chosen["batch"]["micro"].dump(),
                 "activation_checkpointing=" + chosen["activation_checkpointing"].dump(), "--json"}));
  CHECK(pasted["hash"] == chosen["hash"]);
  CHECK(pasted["alternatives"].empty());
}

TEST_CASE("a trace has every instruction of a step on every rank, with its bytes") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml", "cluster.devices_per_node=2", "strategy=ddp", "checkpoint.dir=null"});
  REQUIRE(outcome.code == 0);
  const json events = json::parse(contents_of(in.path("logs/trace.json")));
  const json plan =
      parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy=ddp", "checkpoint.dir=null", "--json"}));
  std::map<int, std::int64_t> instructions, predicted;
  std::map<int, std::string> names;
  bool reduced = false;
  for (const json& event : events) {
    if (event["name"] == "process_name") names[event["pid"].get<int>()] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    CHECK(event["ts"].get<double>() >= 0);
    CHECK(event["args"].contains("bytes"));
    if (event["cat"] == "predicted") {
      ++predicted[event["pid"].get<int>()];
      continue;
    }
    ++instructions[event["pid"].get<int>()];
    reduced = reduced || (event["cat"] == "collective" && event["tid"] == 1);
  }
  const std::int64_t wanted = plan["instructions"]["step"].get<std::int64_t>();
  CHECK(instructions == std::map<int, std::int64_t>{{0, wanted}, {1, wanted}});
  CHECK(predicted == std::map<int, std::int64_t>{{2, wanted}, {3, wanted}});
  CHECK(names ==
        std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}, {2, "rank 0, predicted"}, {3, "rank 1, predicted"}});
  CHECK(reduced);
  CHECK(contains(outcome.err, "rank 1, last step: computing"));
  for (const char* part : {"the step was predicted to take", "measured / predicted", "all_reduce replicate"})
    CHECK(contains(outcome.err, part));
}

TEST_CASE(
    "plan predicts the step: its parts add up, its interval holds it, and its trace has every instruction of every "
    "stage") {
  const Workplace in;
  const Outcome outcome = in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy={pipeline: {degree: 2}}",
                              "train.batch.micro=2", "--json", "--trace", "predicted/step.json"});
  REQUIRE(outcome.code == 0);
  const json plan = parsed(outcome), predicted = plan["predicted"];
  CHECK(has_keys(predicted, {"step_ms", "compute_ms", "exposed_communication_ms", "bubble_ms", "optimizer_ms",
                             "input_ms", "low_ms", "high_ms", "tokens_per_s", "mfu", "hardware"}));
  const auto number = [&](const json& of, const char* key) { return of[key].get<double>(); };
  const double step = number(predicted, "step_ms");
  CHECK(number(predicted, "low_ms") <= step);
  CHECK(step <= number(predicted, "high_ms"));
  CHECK(number(predicted, "mfu") > 0);
  CHECK(number(predicted, "mfu") < 1);
  CHECK(number(predicted, "tokens_per_s") == doctest::Approx(32 / (step * 1e-3)));
  CHECK(number(predicted, "bubble_ms") > 0);
  REQUIRE(predicted["stages"].size() == 2);
  for (const json& stage : predicted["stages"]) {
    double sum = 0;
    for (const char* part : {"compute_ms", "exposed_communication_ms", "bubble_ms", "optimizer_ms", "input_ms"})
      sum += number(stage, part);
    CHECK(sum == doctest::Approx(step));
  }
  std::map<int, std::int64_t> instructions;
  double end = 0;
  for (const json& event : json::parse(contents_of(in.path("predicted/step.json")))) {
    if (event["ph"] != "X") continue;
    ++instructions[event["pid"].get<int>()];
    end = std::max(end, number(event, "ts") + number(event, "dur"));
  }
  CHECK(instructions.size() == 2);
  CHECK(instructions[0] == plan["instructions"]["step"].get<std::int64_t>());
  CHECK(end == doctest::Approx(step * 1e3).epsilon(1e-3));
  CHECK(contains(in({"plan", "job.yaml"}).out, "a step on "));
}

TEST_CASE("of ranks that train apart plan predicts what bringing them together adds") {
  const Workplace in;
  const json plan =
      parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy={data: {kind: local_sgd, every: 4}}",
                 "eval.every=4", "checkpoint.every=4", "--json"}));
  const json predicted = plan["predicted"];
  CHECK(predicted["average_every"] == 4);
  const double step = predicted["step_ms"].get<double>(), average = predicted["average_ms"].get<double>();
  CHECK(average > 0);
  CHECK(predicted["tokens_per_s"].get<double>() == doctest::Approx(32 / ((step + average / 4) * 1e-3)));
  CHECK_FALSE(
      parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "--json"}))["predicted"].contains("average_ms"));
}

TEST_CASE("the trace of a pipeline has an arrow for every message") {
  const Workplace in;
  REQUIRE(in({"run", "job.yaml", "cluster.devices_per_node=2", "strategy={pipeline: {degree: 2}}",
              "train.batch.micro=2", "checkpoint.dir=null"})
              .code == 0);
  std::map<std::int64_t, std::set<std::string>> arrows;
  for (const json& event : json::parse(contents_of(in.path("logs/trace.json"))))
    if (event["ph"] == "s" || event["ph"] == "f")
      arrows[event["id"].get<std::int64_t>()].insert(event["ph"].get<std::string>());
  CHECK(arrows.size() >= 4);  // of two micro-batches, forward and back
  for (const auto& [id, ends] : arrows) CHECK(ends == std::set<std::string>{"s", "f"});
}

TEST_CASE("a finished run says that nothing is left to do and touches nothing") {
  const Workplace in;
  REQUIRE(in({"run", "job.yaml"}).code == 0);
  const std::string trace = contents_of(in.path("logs/trace.json")), log = contents_of(in.path("logs/log.jsonl"));
  const Outcome again = in({"run", "job.yaml", "--json"});
  CHECK(again.code == 0);
  CHECK(contains(again.err, "nothing left to do: 6 of 6 steps"));
  const json report = parsed(again);
  CHECK(report["finished_before"] == true);
  CHECK(report["steps"] == 6);
  CHECK(report["tokens_per_s"].is_null());
  CHECK(contents_of(in.path("logs/trace.json")) == trace);
  CHECK(contents_of(in.path("logs/log.jsonl")) == log);
  CHECK(std::distance(std::filesystem::directory_iterator(in.path("logs/tb")), {}) == 1);
  const Outcome changed = in({"run", "job.yaml", "train.optimizer.lr=0.5"});
  CHECK(changed.code == 78);
  CHECK(contains(changed.err, "has finished with another value"));
}

TEST_CASE(
    "weights are saved in runs/<name> beside the job unless checkpoint.dir is null, which the first line repeats") {
  const Workplace in;
  const std::string job = in.with_change("checkpoint: {dir: runs, every: 2, keep: 3}", "checkpoint: {every: 2}");
  REQUIRE(in({"run", job}).code == 0);
  CHECK(std::filesystem::exists(in.path("runs/tiny/step-00000006")));
  const Outcome none = in({"run", job, "checkpoint={dir: null}"});
  CHECK(none.code == 0);
  CHECK(none.err.starts_with("weights will not be saved: checkpoint.dir is null\n"));
}

TEST_CASE("a trace does not overwrite a file that is not one") {
  const Workplace in;
  const std::string text = contents_of(in.path("text.txt"));
  const Outcome outcome = in({"run", "job.yaml", "log.trace=text.txt"});
  CHECK(outcome.code == 65);
  CHECK(contains(outcome.err, "is not a trace"));
  CHECK(contents_of(in.path("text.txt")) == text);
}

TEST_CASE("run without --json prints a summary for people") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml"});
  CHECK(outcome.code == 0);
  for (const char* part : {"steps: 6", "loss: ", "validation loss: ", "checkpoint: runs/step-00000006"})
    CHECK(contains(outcome.out, part));
}

TEST_CASE("a run that was stopped by a signal saves, exits 143, and goes on to the bits of an undisturbed one") {
  const Workplace in;
  const std::vector<std::string> arguments{
      "run", "job.yaml", "train.steps=3000", "eval.every=10000", "checkpoint.every=10000", "--json"};
  const Workplace undisturbed;
  const Outcome whole = undisturbed(arguments);
  REQUIRE(whole.code == 0);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    CAPTURE(number);
    Process process(in.path(), arguments);
    const std::string log = in.path("logs/log.jsonl");
    const std::size_t before = contents_of(log).size();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (contents_of(log).size() <= before + 500 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    process.signal(number);
    const Outcome stopped = process.wait();
    CAPTURE(stopped.err);
    REQUIRE(stopped.code == 143);
    const json report = parsed(stopped);
    CHECK(report["stopped_by_signal"] == true);
    CHECK(std::filesystem::exists(in.path(report["checkpoint"].get<std::string>())));
  }
  const Outcome resumed = in(arguments);
  CHECK(resumed.code == 0);
  CHECK(contains(resumed.err, "resuming from runs/step-"));
  CHECK(parsed(resumed)["loss"] == parsed(whole)["loss"]);
  std::int64_t step = 0;
  for (const json& line : lines_of(in.path("logs/log.jsonl")))
    if (line.contains("loss")) CHECK(line["step"] == step++);
  CHECK(step == 3000);
}

TEST_CASE("zero steps write the initial weights, which eval can measure") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml", "train.steps=0", "--json"});
  CHECK(outcome.code == 0);
  CHECK(parsed(outcome)["loss"].is_null());
  const json record = parsed(in({"eval", "job.yaml", "--checkpoint", "runs/step-00000000", "--json"}));
  CHECK(record["step"] == 0);
  CHECK(record["val_loss"].get<double>() ==
        doctest::Approx(std::log(256.0)).epsilon(0.02));  // nearly uniform over 256 ids
}

}  // namespace trainer::run_command_test
