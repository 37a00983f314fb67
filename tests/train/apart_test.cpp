// Strategies that do not equal one rank: local SGD against a serial simulation of itself, and compressed gradients
// against whole ones.
//
// Bounds. A simulated rank is a job of one rank on that rank's samples, so its weights come out the same but for the
// order of sums over 4 samples; averages and outer steps are then made here in f64. γ = 2 · 64 u of ddp_test.cpp bounds
// the sums, and the weights stay below 4 in size: what is compared after T steps of AdamW differs by T · lr · 2 γ norm
// / eps at most, 1e-5 here.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr double kBound = 1e-5;

const Overrides kPlainTable{"data.normalize=none", "data.shuffle=false", "checkpoint.every=600000"};

Overrides with(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Of every 8 rows those that rank `rank` of two gets.
std::string half_of_table(const TinyJobs& jobs, int rank) {
  std::ifstream file(jobs.path("table.csv"));
  std::string half, line;
  for (int row = 0; std::getline(file, line); ++row)
    if (row % 8 / 4 == rank) half += line + "\n";
  return half;
}

Tensors initial_weights(const TinyJobs& jobs) {
  return weights_of(run(jobs.load("mlp", "initial", with(kPlainTable, {"train.steps=0"}))).report.checkpoint);
}

// Weights of a rank that trains alone on its half.
Tensors alone(const TinyJobs& jobs, int rank) {
  const std::string name = "half" + std::to_string(rank);
  jobs.write(name + ".csv", half_of_table(jobs, rank));
  return weights_of(
      run(jobs.load("mlp", name, with(kPlainTable, {"data.train=" + jobs.path(name + ".csv"), "train.batch.global=4"})))
          .report.checkpoint);
}

Trained local(const TinyJobs& jobs, const std::string& folder, const std::string& settings,
              const Overrides& more = {}) {
  return run(jobs.load(
      "mlp", folder,
      with(with(kPlainTable, {"cluster.devices_per_node=2", "strategy={data: {kind: local_sgd, " + settings + "}}"}),
           more)));
}

template <typename Combine>
Tensors combined(const Tensors& a, const Tensors& b, Combine&& combine) {
  Tensors result = a;
  for (auto& [name, values] : result)
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(combine(static_cast<double>(a.at(name)[i]), static_cast<double>(b.at(name)[i])));
  return result;
}

Tensors mean(const Tensors& a, const Tensors& b) {
  return combined(a, b, [](double x, double y) { return (x + y) / 2; });
}

}  // namespace

TEST_CASE("a round of local SGD is the mean of what its ranks would have trained alone") {
  const TinyJobs jobs;
  const Tensors simulated = mean(alone(jobs, 0), alone(jobs, 1));
  CHECK(largest_difference(weights_of(local(jobs, "round", "every: 6").report.checkpoint), simulated) < kBound);
  CHECK(largest_difference(initial_weights(jobs), simulated) > 100 * kBound);
}

TEST_CASE("an outer optimizer takes the way to the mean as its gradient") {
  const TinyJobs jobs;
  const Tensors start = initial_weights(jobs), average = mean(alone(jobs, 0), alone(jobs, 1));
  // The first step of Nesterov's momentum from rest: θ − lr (1 + μ)(θ − mean).
  const Tensors nesterov =
      combined(start, average, [](double anchor, double to) { return anchor - 0.5 * 1.9 * (anchor - to); });
  const Tensors plain = combined(start, average, [](double anchor, double to) { return anchor - 0.5 * (anchor - to); });
  CHECK(largest_difference(
            weights_of(local(jobs, "nesterov", "every: 6, outer: {lr: 0.5, momentum: 0.9}").report.checkpoint),
            nesterov) < kBound);
  CHECK(largest_difference(
            weights_of(
                local(jobs, "plain", "every: 6, outer: {lr: 0.5, momentum: 0.9, nesterov: false}").report.checkpoint),
            plain) < kBound);
}

TEST_CASE("local SGD that averages every step of plain SGD is data parallel training") {
  const TinyJobs jobs;
  const Overrides sgd{"train.optimizer={name: sgd, lr: 0.05}", "cluster.devices_per_node=2"};
  const Tensors every_step = weights_of(
      run(jobs.load("mlp", "local", with(with(kPlainTable, sgd), {"strategy={data: {kind: local_sgd, every: 1}}"})))
          .report.checkpoint);
  const Tensors reduced =
      weights_of(run(jobs.load("mlp", "ddp", with(with(kPlainTable, sgd), {"strategy=ddp"}))).report.checkpoint);
  CHECK(largest_difference(every_step, reduced) < kBound);
}

TEST_CASE("one rank that has nobody to average with trains as without") {
  const TinyJobs jobs;
  const auto trained = [&](const std::string& data) {
    static int runs = 0;
    return run(jobs.load("gpt2", std::to_string(runs++),
                         {"precision.compute=bf16", "checkpoint.every=2", "strategy.data=" + data}));
  };
  const Trained plain = trained("ddp");
  for (const char* data : {"{kind: local_sgd, every: 2}", "{kind: local_sgd, every: 2, delayed: true}"}) {
    CAPTURE(std::string(data));
    CHECK(trained(data).loss == plain.loss);
  }
}

TEST_CASE("a delayed average comes a round late, and all is settled where weights are saved") {
  const TinyJobs jobs;
  // One round: nothing is under way before its end but the start, on which all agree; saving then takes the plain mean.
  const Tensors simulated = mean(alone(jobs, 0), alone(jobs, 1));
  CHECK(largest_difference(weights_of(local(jobs, "delayed", "every: 6, delayed: true").report.checkpoint), simulated) <
        kBound);
  // Saved in the middle of two rounds and resumed, or not: the same bits.
  const Overrides saving{"checkpoint.every=2", "checkpoint.keep=null"};
  const Trained whole = local(jobs, "whole", "every: 2, delayed: true", saving);
  local(jobs, "parts", "every: 2, delayed: true", with(saving, {"train.steps=4"}));
  // The schedule of the shorter run is another; only that it goes on is compared: from its own checkpoint, twice.
  const Trained once = local(jobs, "parts", "every: 2, delayed: true", saving);
  CHECK(once.report.first_step == 4);
  CHECK(once.loss.size() == 2);
  CHECK(whole.loss.size() == 6);
}

TEST_CASE("compressed gradients train about as whole ones do, and resume to the same bits") {
  const TinyJobs jobs;
  const Overrides longer{"train.steps=60", "cluster.devices_per_node=2", "train.batch.micro=2"};
  const auto trained = [&](const std::string& folder, const std::string& data, const Overrides& more = {}) {
    return run(jobs.load("gpt2", folder, with(with(longer, more), {"strategy={data: {" + data + "}}"})));
  };
  const double whole = trained("whole", "kind: ddp").loss.back();
  int number = 0;
  for (const char* data : {"kind: ddp, compression: bf16", "kind: ddp, compression: int8",
                           "kind: ddp, compression: {top_k: 0.25}, bucket_mb: 0.01",
                           "kind: zero1, compression: int8, bucket_mb: 0.01", "kind: zero1, compression: bf16"}) {
    CAPTURE(std::string(data));
    const std::string folder = "compressed" + std::to_string(number++);
    const Trained compressed = trained(folder, data, {"checkpoint.every=30", "checkpoint.keep=null"});
    CHECK(std::fabs(compressed.loss.back() / whole - 1) < 0.02);
    const Tensors end = tensors_of(compressed.report.checkpoint);
    std::filesystem::remove_all(compressed.report.checkpoint);
    const Trained resumed = trained(folder, data, {"checkpoint.every=30", "checkpoint.keep=null"});
    CHECK(resumed.report.first_step == 30);
    CHECK(largest_difference(tensors_of(resumed.report.checkpoint), end) == 0);
  }
}
