// Training with batch_norm: running statistics are the model's, whatever trains it. Ranks that normalise by all ranks'
// samples are one rank; what a run resumes with, recomputes, cuts into stages or evaluates changes no statistic; and
// where ranks normalise by their own samples, the running statistics are still those of all.
//
// Bounds. γ = 2 · 64 u of ddp_test.cpp bounds the sums of a step's gradient; statistics are sums in f64, which ranks
// cut without a trace in f32. What is compared after 6 steps of AdamW (eps 1e-3, lr 1e-2) differs by 1e-5 at most.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "engine/core/error.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr double kBound = 1e-5;
constexpr std::size_t kStatistics = 8;  // of four norms

constexpr const char* kGraph = R"(name: norms
params: {sync: true}
inputs:
  features: {dtype: f32, shape: [batch, 6]}
  targets: {dtype: i32, shape: [batch]}
nodes:
  - {name: first, op: batch_norm, input: features, sync: "${sync}", momentum: 0.2}
  - {name: image, op: reshape, shape: [batch, 1, 2, 3]}
  - repeat: 2
    name: "h.{index}"
    block: Layer
    nodes:
      - {name: conv, op: conv2d, out: 5, kernel: 3, padding: 1, bias: false, init: {normal: 0.4}}
      - {name: norm, op: batch_norm, sync: "${sync}"}
      - {name: act, op: relu}
  - {name: side, op: conv2d, out: 5, kernel: 1, bias: false, init: {normal: 0.4}}
  - {name: side_norm, op: batch_norm, sync: "${sync}"}
  - {name: sum, op: add, input: [side_norm, h.1.act]}
  - {name: act, op: relu}
  - {name: flat, op: flatten}
  - {name: fc, op: linear, out: 4, init: {normal: 0.2}}
  - {name: loss, op: cross_entropy, input: [fc, targets]}
outputs: {loss: loss, logits: fc}
)";

/// The job of a table with that model.
struct Jobs : TinyJobs {
  Jobs() {
    write("norms_graph.yaml", kGraph);
    write("norms.yaml", "seed: 7\nmodel: {graph: " + path("norms_graph.yaml") + R"(}
data: {format: table, train: table.csv, val: table.csv, target: -1, normalize: standard, shuffle: true}
train:
  steps: 6
  batch: {global: 8, micro: auto}
  optimizer: {name: adamw, lr: 1.0e-2, betas: [0.9, 0.95], eps: 1.0e-3, weight_decay: 0.1}
  lr_schedule: {name: constant}
  clip_norm: null
precision: {params: f32, compute: f32, reduce: f32, loss_scale: none}
checkpoint: {every: 1000000, keep: null, format: full, resume: auto}
)");
  }
  Trained train(const std::string& folder, const Overrides& overrides = {}) const {
    return run(load("norms", folder, overrides));
  }
};

Overrides on(int ranks, const std::string& strategy, const Overrides& more = {}) {
  return both({"cluster.devices_per_node=" + std::to_string(ranks), "strategy=" + strategy}, more);
}

Tensors statistics(const Tensors& tensors) {
  Tensors running;
  for (const auto& [name, values] : tensors)
    if (name.find("running_") != std::string::npos) running[name] = values;
  return running;
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const JobError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("running statistics start at 0 and 1, and move by their momentum to those of the batch") {
  const Jobs jobs;
  const Tensors start = tensors_of(jobs.train("start", {"train.steps=0"}).report.checkpoint);
  CHECK(start.at("first.running_mean") == std::vector<float>(6, 0.0F));
  CHECK(start.at("h.1.norm.running_var") == std::vector<float>(5, 1.0F));
  // One step over the first 8 rows of the table as they are.
  const Overrides plain{"train.steps=1", "data.normalize=none", "data.shuffle=false"};
  const Tensors after = tensors_of(jobs.train("one", plain).report.checkpoint);
  std::vector<double> first(6), second(6);
  std::istringstream rows(contents_of(jobs.path("table.csv")));
  std::string line;
  for (int row = 0; row < 8 && std::getline(rows, line); ++row) {
    std::istringstream cells(line);
    for (std::size_t column = 0; column < 6; ++column) {
      std::string cell;
      std::getline(cells, cell, ',');
      const double x = std::stof(cell);
      first[column] += x, second[column] += x * x;
    }
  }
  for (std::size_t column = 0; column < 6; ++column) {
    const double mean = first[column] / 8, variance = (second[column] / 8 - mean * mean) * 8 / 7;
    CHECK(after.at("first.running_mean")[column] == doctest::Approx(0.2 * mean).epsilon(1e-6));
    CHECK(after.at("first.running_var")[column] == doctest::Approx(0.8 + 0.2 * variance).epsilon(1e-6));
  }
}

TEST_CASE("ranks that share their statistics train as one rank does") {
  const Jobs jobs;
  const Trained one = jobs.train("one");
  const Tensors expected = tensors_of(one.report.checkpoint);
  CHECK(statistics(expected).size() == kStatistics);
  for (const char* strategy : {"ddp", "zero1", "fsdp", "{data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}}"}) {
    CAPTURE(strategy);
    const int ranks = strategy[0] == '{' ? 4 : 2;
    const Trained two = jobs.train("two", on(ranks, strategy, {"checkpoint.resume=none"}));
    for (std::size_t step = 0; step < one.loss.size(); ++step)
      CHECK(std::abs(two.loss[step] - one.loss[step]) < kBound);
    CHECK(largest_difference(tensors_of(two.report.checkpoint), expected) < kBound);
    std::filesystem::remove_all(jobs.path("two"));
  }
}

TEST_CASE("ranks that normalise by their own samples keep the running statistics of all") {
  const Jobs jobs;
  const Overrides own{"model.with.sync=false"};
  const Trained shared = jobs.train("shared", on(2, "ddp")), apart = jobs.train("apart", on(2, "ddp", own));
  CHECK(std::abs(shared.loss[0] - apart.loss[0]) > 1e-3);
  const Tensors ours = tensors_of(apart.report.checkpoint), theirs = tensors_of(shared.report.checkpoint);
  // The first norm reads the data alone, which is the same.
  CHECK(ours.at("first.running_mean") == theirs.at("first.running_mean"));
  CHECK(ours.at("first.running_var") == theirs.at("first.running_var"));
  CHECK(ours.at("h.0.norm.running_var") != theirs.at("h.0.norm.running_var"));
  // One rank has only its own.
  CHECK(tensors_of(jobs.train("alone").report.checkpoint) ==
        tensors_of(jobs.train("alone_too", own).report.checkpoint));
}

TEST_CASE("each micro-batch moves the running statistics, once, whatever is recomputed") {
  const Jobs jobs;
  const Overrides four{"train.batch.micro=2", "eval={every: 3}"};
  const Trained plain = jobs.train("plain", four);
  CHECK(largest_difference(statistics(tensors_of(plain.report.checkpoint)),
                           statistics(tensors_of(jobs.train("whole").report.checkpoint))) > 1e-3);
  for (const std::string mode : {"full", "selective", "{mode: every_n, every: 2}"}) {
    CAPTURE(mode);
    const Trained again = jobs.train("again_" + mode.substr(0, 4), both(four, {"activation_checkpointing=" + mode}));
    CHECK(again.loss == plain.loss);
    CHECK(tensors_of(again.report.checkpoint) == tensors_of(plain.report.checkpoint));
  }
}

TEST_CASE("stages of a pipeline keep the statistics of their own norms") {
  const Jobs jobs;
  const Overrides four{"train.batch.micro=2"};
  const Trained plain = jobs.train("plain", four);
  for (const char* schedule : {"gpipe", "1f1b", "zb_h1"}) {
    CAPTURE(schedule);
    const Trained piped = jobs.train(std::string("piped_") + schedule,
                                     on(2, "{pipeline: {degree: 2, schedule: " + std::string(schedule) + "}}", four));
    CHECK(largest_difference(tensors_of(piped.report.checkpoint), tensors_of(plain.report.checkpoint)) < kBound);
  }
  // Two stages of two data ranks each.
  const Trained both_ways = jobs.train("both", on(4, "{data: ddp, pipeline: {degree: 2, schedule: 1f1b}}",
                                                  {"train.batch.micro=1", "train.batch.global=8"}));
  CHECK(statistics(tensors_of(both_ways.report.checkpoint)).size() == kStatistics);
}

TEST_CASE("a run resumes with the statistics that it saved, on as many ranks or others") {
  const Jobs jobs;
  for (const auto& [strategy, format] : {std::pair<std::string, std::string>{"ddp", "full"}, {"fsdp", "sharded"}}) {
    CAPTURE(strategy);
    const std::string name = strategy + format;
    const Overrides two = on(2, strategy, {"checkpoint.format=" + format, "eval={every: 2}"});
    const Trained whole = jobs.train(name, both(two, {"checkpoint.every=3"}));
    copy_step(jobs, name, 3, name + "_again");
    const Trained again = jobs.train(name + "_again", two);
    CHECK(again.loss.size() == 3);
    CHECK(files_of(again.report.checkpoint) == files_of(whole.report.checkpoint));
    CHECK(again.evaluations.back().val_loss == whole.evaluations.back().val_loss);
    copy_step(jobs, name, 3, name + "_one");
    const Trained one = jobs.train(name + "_one");
    CHECK(largest_difference(tensors_of(one.report.checkpoint), tensors_of(whole.report.checkpoint)) < kBound);
  }
}

TEST_CASE("evaluation goes by the running statistics, which it leaves as they are") {
  const Jobs jobs;
  const Trained with = jobs.train("with", {"eval={every: 1}"}), without = jobs.train("without");
  CHECK(tensors_of(with.report.checkpoint) == tensors_of(without.report.checkpoint));
  const LoadedJob loaded = jobs.load("norms", "with", {"eval={every: 1}"});
  const EvaluationRecord again = evaluate(loaded, compiled(loaded, Purpose::evaluate), with.report.checkpoint, 0);
  CHECK(again.val_loss == with.evaluations.back().val_loss);
  // A sample's loss is its own: no statistic is of the batch.
  const LoadedJob single = jobs.load("norms", "with", {"eval={every: 1}", "train.batch.micro=1"});
  CHECK(evaluate(single, compiled(single, Purpose::evaluate), with.report.checkpoint, 0).val_loss ==
        doctest::Approx(again.val_loss).epsilon(1e-6));
  // Weights of elsewhere come with their statistics.
  const Trained from = jobs.train("from", {"model.init_from=" + with.report.checkpoint, "train.steps=0"});
  CHECK(weights_of(from.report.checkpoint) == weights_of(with.report.checkpoint));
  CHECK(statistics(weights_of(from.report.checkpoint)).size() == kStatistics);
}

TEST_CASE("bf16 computes by statistics in f32") {
  const Jobs jobs;
  const Trained half = jobs.train("half", {"precision.compute=bf16"}), full = jobs.train("full");
  CHECK(largest_difference(statistics(tensors_of(half.report.checkpoint)),
                           statistics(tensors_of(full.report.checkpoint))) < 0.05);
}

TEST_CASE("what cannot keep running statistics says so") {
  const Jobs jobs;
  const auto compile_with = [&](const Overrides& overrides) {
    return error_of([&] { compiled(jobs.load("norms", "errors", overrides)); });
  };
  CHECK(contains(compile_with(on(2, "{data: {kind: local_sgd, every: 2}}")),
                 "ranks that train apart cannot keep first.running_mean"));
  CHECK(contains(compile_with({"adapter={kind: lora, rank: 2, targets: [fc]}", "model.init_from=here"}),
                 "would lose what training does to first.running_mean"));
  CHECK(contains(compile_with({"train.batch.micro=1"}), "a channel has one element in a micro-batch"));
  CHECK(contains(compile_with(on(2, "ddp", {"train.batch.micro=1", "model.with.sync=false"})),
                 "a channel has one element in a micro-batch"));
  CHECK(compile_with(on(2, "ddp", {"train.batch.micro=1"})).empty());
}
