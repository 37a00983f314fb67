// Local SGD in parts (streaming DiLoCo) against a serial simulation of it in f64, which shares no code with the engine:
// a multilayer perceptron, AdamW of each rank, and the outer optimizer of each part at its own step. What is saved at
// any step, and what outer gradients in 8 bits may change.
//
// Bounds. The engine rounds to f32 what the simulation does not; as in apart_test.cpp that is 1e-5 after a few steps,
// where the schedules that are told apart differ by more than a hundred times as much.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <span>
#include <sstream>

#include "engine/plan/traffic.h"
#include "tests/train/serial_mlp.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr double kBound = 1e-5;
constexpr int kSteps = 10, kEvery = 4;

struct Outer {
  int parts = 1;
  double lr = 0.7, momentum = 0.9;
};

struct Simulated {
  Model model;  // what ranks agreed on last
  std::vector<Rank> ranks;
};

// `last`: the step after which all parts are averaged.
Simulated simulate(const LoadedJob& job, const Model& start, const std::vector<Row>& rows, int num_ranks,
                   const Outer& outer, int steps, int last = kSteps) {
  Simulated now{start, std::vector<Rank>(static_cast<std::size_t>(num_ranks), Rank{start, {}, {}})};
  Model velocity;
  const std::size_t share = 8 / static_cast<std::size_t>(num_ranks);
  for (int step = 1; step <= steps; ++step) {
    const double lr = learning_rate(job.job.train, job.job.train.optimizer, step - 1);
    for (std::size_t rank = 0; rank < now.ranks.size(); ++rank)
      adamw(now.ranks[rank],
            gradient_of(now.ranks[rank].weights,
                        std::span(rows).subspan(8 * static_cast<std::size_t>(step - 1) + rank * share, share)),
            lr, step);
    for (std::size_t layer = 0; layer < kLayers.size(); ++layer) {
      const int part = static_cast<int>(layer) % outer.parts, due = (part + 1) * kEvery / outer.parts;
      if (step != last && step % kEvery != due % kEvery) continue;
      for (const std::string& name : {kLayers[layer] + ".weight", kLayers[layer] + ".bias"}) {
        Values &anchor = now.model.at(name), &u = velocity[name];
        u.resize(anchor.size());
        for (std::size_t i = 0; i < anchor.size(); ++i) {
          double way = 0;
          for (const Rank& rank : now.ranks) way += (anchor[i] - rank.weights.at(name)[i]) / num_ranks;
          u[i] = outer.momentum * u[i] + way;
          anchor[i] -= outer.lr * (way + outer.momentum * u[i]);
        }
        for (Rank& rank : now.ranks) rank.weights.at(name) = anchor;
      }
    }
  }
  return now;
}

// ---- The engine ----

Overrides streaming(int ranks, const std::string& data, const Overrides& more = {}) {
  return both({"data.normalize=none", "data.shuffle=false", "train.steps=" + std::to_string(kSteps),
               "cluster.devices_per_node=" + std::to_string(ranks),
               "strategy={data: {kind: local_sgd, every: 4, " + data + "}}"},
              more);
}

std::string parts(int number, const std::string& more = "") {
  return "parts: " + std::to_string(number) + ", outer: {lr: 0.7, momentum: 0.9" + more + "}";
}

}  // namespace

TEST_CASE(
    "each part is brought together at a step of its own, as in a serial simulation, and each rank keeps its own") {
  const TinyJobs jobs;
  const std::vector<Row> rows = rows_of(jobs.path("table.csv"));
  const Model start = model_of(jobs);
  for (const int ranks : {2, 4})
    for (const int number : {2, 3, 4}) {
      CAPTURE(ranks);
      CAPTURE(number);
      const std::string folder = std::to_string(ranks) + "x" + std::to_string(number);
      const LoadedJob job =
          jobs.load("mlp", folder, streaming(ranks, parts(number), {"checkpoint.every=1", "checkpoint.keep=null"}));
      run(job);
      for (int step = 1; step <= kSteps; ++step) {
        CAPTURE(step);
        const Tensors saved = tensors_of(jobs.path(folder) + "/" + step_name(step));
        const Simulated due = simulate(job, start, rows, ranks, {.parts = number}, step);
        CHECK(difference(due.model, saved) < kBound);
        for (int rank = 0; rank < ranks; ++rank)
          CHECK(difference(due.ranks[static_cast<std::size_t>(rank)].weights, saved, ".local." + std::to_string(rank)) <
                kBound);
        if (step == kSteps) CHECK(difference(due.ranks[0].weights, saved) < kBound);
      }
      // All at once, or without momentum, it would be another model.
      const Tensors end = tensors_of(jobs.path(folder) + "/" + step_name(kSteps));
      CHECK(difference(simulate(job, start, rows, ranks, {}, kSteps).model, end) > 100 * kBound);
      CHECK(difference(simulate(job, start, rows, ranks, {.parts = number, .momentum = 0}, kSteps).model, end) >
            100 * kBound);
    }
}

TEST_CASE("a run in parts resumes after any step to the bits of one that neither stopped nor saved") {
  for (const char* const compression : {"none", "int8"}) {
    const TinyJobs jobs;
    CAPTURE(std::string(compression));
    const std::string data = parts(3, ", compression: " + std::string(compression));
    for (const char* format : {"full", "sharded"}) {
      const std::string folder(format);
      const Overrides overrides = streaming(2, data, {"checkpoint.format=" + folder, "precision.compute=bf16"});
      const Trained plain = run(jobs.load("mlp", folder + " plain", overrides));
      const Trained whole =
          run(jobs.load("mlp", folder, both(overrides, {"checkpoint.every=1", "checkpoint.keep=null"})));
      CHECK(whole.loss == plain.loss);
      CHECK(tensors_of(whole.report.checkpoint) == tensors_of(plain.report.checkpoint));
      for (int step = 1; step < kSteps; ++step) {
        CAPTURE(step);
        const std::string from = folder + " from " + std::to_string(step);
        copy_step(jobs, folder, step, from);
        const Trained resumed = run(jobs.load("mlp", from, overrides));
        CHECK(resumed.report.first_step == step);
        CHECK(resumed.loss == std::vector<double>(whole.loss.begin() + step, whole.loss.end()));
        CHECK(files_of(resumed.report.checkpoint) == files_of(whole.report.checkpoint));
      }
    }
  }
}

TEST_CASE("a run in parts that a signal ends goes on as if it had not been, and after the last step all ranks agree") {
  const TinyJobs jobs;
  const Overrides overrides = streaming(2, parts(4));
  const Trained whole = run(jobs.load("mlp", "whole", overrides));
  std::atomic<bool> stop = false;
  TrainOptions options;
  options.stop = &stop;
  const Trained first = run(
      jobs.load("mlp", "stopped", overrides), [&](std::int64_t step) { stop = step == 4; }, options);
  CHECK(first.report.stopped_by_signal);
  CHECK(first.report.steps == 5);
  const Trained second = run(jobs.load("mlp", "stopped", overrides));
  CHECK(second.report.first_step == 5);
  CHECK(files_of(second.report.checkpoint) == files_of(whole.report.checkpoint));
  const Tensors end = tensors_of(whole.report.checkpoint);
  for (const std::string& layer : kLayers)
    for (const char* rank : {"0", "1"}) CHECK(end.at(layer + ".weight.local." + rank) == end.at(layer + ".weight"));
}

TEST_CASE("what is evaluated between averages is the model that ranks agreed on last") {
  const TinyJobs jobs;
  std::string text;
  std::istringstream table(contents_of(jobs.path("table.csv")));
  std::string line;
  for (int row = 0; row < 16 && std::getline(table, line); ++row) text += line + "\n";
  const Overrides val{"data.val=" + jobs.write("val.csv", text), "eval.every=3", "eval.batches=100"};
  const Overrides saving{"checkpoint.every=3", "checkpoint.keep=null"};
  const Trained plain = run(jobs.load("mlp", "plain", streaming(2, parts(4))));
  const Trained told = run(jobs.load("mlp", "run", streaming(2, parts(4), both(val, saving))));
  CHECK(told.loss == plain.loss);
  REQUIRE(told.evaluations.size() == 4);  // after 3, 6, 9 and 10 steps
  for (int step = 3; step < kSteps; step += 3) {
    const std::string from = jobs.path("run") + "/" + step_name(step);
    const Trained one = run(jobs.load("mlp", "one" + std::to_string(step),
                                      both(val, {"train.steps=0", "data.normalize=none", "model.init_from=" + from})));
    REQUIRE(one.evaluations.size() == 1);
    CHECK(std::fabs(told.evaluations[static_cast<std::size_t>(step / 3 - 1)].val_loss - one.evaluations[0].val_loss) <
          1e-6);
  }
}

TEST_CASE("other numbers of ranks and other strategies go on from the model in parts") {
  const TinyJobs jobs;
  run(jobs.load("mlp", "two", streaming(2, parts(4), {"checkpoint.every=5"})));
  const std::string from = "checkpoint.resume=" + jobs.path("two") + "/" + step_name(5);
  int number = 0;
  for (const std::string strategy : {"{data: {kind: local_sgd, every: 4, parts: 4, outer: {}}}", "ddp", "zero1"}) {
    CAPTURE(strategy);
    const Trained other = run(jobs.load("mlp", "other" + std::to_string(number++),
                                        {"data.normalize=none", "data.shuffle=false", "train.steps=10", from,
                                         "cluster.devices_per_node=4", "strategy=" + strategy}));
    CHECK(other.report.first_step == 5);
    CHECK(other.loss.size() == 5);
  }
}

// With one step of Nesterov from rest, θ − lr (1 + μ) · mean way. A code is off by half a step of its block's scale at
// most, which is the block's largest element / 127: once on each rank, and once of the sum.
TEST_CASE("outer gradients in 8 bits are off by what their codes round, and train about as well") {
  const TinyJobs jobs;
  const Overrides one_round{"train.steps=4"};
  const auto end = [&](const std::string& folder, const std::string& compression) {
    return weights_of(
        run(jobs.load("mlp", folder, streaming(2, "outer: {compression: " + compression + "}", one_round)))
            .report.checkpoint);
  };
  Tensors exact = end("exact", "none"), rounded = end("rounded", "int8");
  std::erase_if(rounded, [](const auto& one) { return one.first.find(".residual.") != std::string::npos; });
  const Model start = model_of(jobs);
  double way = 0;
  for (const auto& [name, values] : exact)
    for (std::size_t i = 0; i < values.size(); ++i)
      way = std::fmax(way, std::fabs(values[i] - start.at(name)[i]) / (0.7 * 1.9));
  const double off = largest_difference(exact, rounded);
  CHECK(off > 0);
  // The ways of single ranks are at most as long as AdamW's steps: twice the longest mean one here.
  CHECK(off < 0.7 * 1.9 * 2 * (2 * way) / 254);

  const auto loss = [&](const std::string& folder, const std::string& data) {
    return run(jobs.load("gpt2", folder,
                         {"train.steps=60", "cluster.devices_per_node=2", "train.batch.micro=2",
                          "strategy={data: {kind: local_sgd, every: 4, " + data + "}}"}))
        .loss.back();
  };
  const double whole = loss("whole", parts(2));
  for (const std::string compression : {"bf16", "int8", "{top_k: 0.25}"})
    CHECK(std::fabs(loss("gpt2" + compression.substr(1, 2), parts(2, ", compression: " + compression)) / whole - 1) <
          0.03);
}

TEST_CASE("a part is sent at a time: counted as planned as the formula has it, and memory is as planned") {
  const TinyJobs jobs;
  for (const int ranks : {2, 4})
    for (const bool codes : {false, true}) {
      const LoadedJob loaded = jobs.load("mlp", std::to_string(ranks) + (codes ? " int8" : ""),
                                         streaming(ranks, parts(4, codes ? ", compression: int8" : "")));
      const CompiledJob job = compiled(loaded);
      const Role& role = job.plan.roles.front();
      REQUIRE(role.units.size() == 4);
      std::int64_t anchors = 0;
      for (int part = 0; part < 4; ++part) {
        const std::int64_t elements = role.units[static_cast<std::size_t>(part)].elements, slice = elements / ranks,
                           blocks = (slice + 255) / 256, code = (slice + 63) / 64 * 64 + (4 * blocks + 63) / 64 * 64;
        const std::int64_t bytes = 2 * (ranks - 1) * (codes ? code : 4 * slice);
        CHECK(bytes_of(traffic_of(job.plan, 0, ProgramKind::average, part)) == bytes);
        anchors += 4 * elements;
      }
      std::int64_t held = 0;
      for (const Unit& unit : role.units) held += unit.find(Slot::Kind::anchor)->region.bytes;
      CHECK(held == anchors);
      const Trained told = run(loaded, job);
      // The parts come after steps 1, 2, 3 and 4 of every 4, and all of them after the tenth.
      std::int64_t sent = kSteps * bytes_of(traffic_of(job.plan));
      for (int part = 0; part < 4; ++part)
        sent += (part == 0 ? 4 : 3) * bytes_of(traffic_of(job.plan, 0, ProgramKind::average, part));
      CHECK(told.report.bytes_sent == sent);
      CHECK(told.report.allocated_bytes == told.report.planned_peak_bytes);
    }
}
