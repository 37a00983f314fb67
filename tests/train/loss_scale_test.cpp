// Loss scales. A power of two moves exponents alone, so that short of overflow and underflow it changes no bit. A
// dynamic one goes the way of PyTorch's GradScaler (simulated here), on every rank alike, and over a resume.
//
// Overflow in f32 needs scales near its end: features of 2^14 make gradients so large that 2^126, the largest scale a
// job may have, overflows them, and the small scales do not.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/core/error.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

Overrides on(int ranks, const std::string& strategy, Overrides more = {}) {
  return both({"cluster.devices_per_node=" + std::to_string(ranks), "strategy=" + strategy}, more);
}

const Overrides kOne = on(1, "ddp");
const std::string kSmallBuckets = "bucket_mb: 0.004";

// Rows of four ids; of each eight the last two are large, so that of four data ranks the last alone has them.
Overrides large_features(const TinyJobs& jobs) {
  std::string table;
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 6; ++column)
      table += row % 8 >= 6 ? std::to_string(16384 + 100 * column + row) + ","
                            : std::to_string(0.1 * (row % 5) + 0.05 * column) + ",";
    table += std::to_string(row % 4) + "\n";
  }
  jobs.write("large.csv", table);
  return {"data.train=" + jobs.path("large.csv"), "data.normalize=none", "data.shuffle=false", "train.clip_norm=1.0"};
}

// Overflows at once and, as it grows every third good step, again and again.
const std::string kRestless =
    "precision.loss_scale={init_scale: 85070591730234615865843651857942052864.0, largest_scale: "
    "85070591730234615865843651857942052864.0, "
    "growth_interval: 3}";
const double kLargest = 0x1p126;

// Without what compression keeps, which is in the loss scale.
Tensors parameters_of(const Trained& trained) {
  Tensors tensors = weights_of(trained.report.checkpoint);
  std::erase_if(tensors, [](const auto& entry) { return entry.first.find(".residual") != std::string::npos; });
  return tensors;
}

// PyTorch's GradScaler.update as its documentation has it.
std::vector<double> scales_by_grad_scaler(const std::vector<std::int64_t>& overflows, std::size_t steps, double scale,
                                          int growth_interval) {
  std::vector<double> scales;
  int growth_tracker = 0;
  std::size_t next = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    scales.push_back(scale);
    if (next < overflows.size() && overflows[next] == static_cast<std::int64_t>(step)) {
      scale *= 0.5;
      growth_tracker = 0;
      ++next;
    } else if (++growth_tracker == growth_interval) {
      scale *= 2;
      growth_tracker = 0;
    }
  }
  return scales;
}

}  // namespace

TEST_CASE("a loss scale that is a power of two changes no bit of a run, under any strategy") {
  struct Case {
    const char* model;
    Overrides overrides;
    bool scales_dynamically = true;
  };
  const std::vector<Case> cases{
      {"mlp", both(kOne, {"train.clip_norm=0.5"})},
      {"gpt2", both(kOne, {"precision.compute=bf16", "train.clip_norm=0.5", "train.batch.micro=2"})},
      {"llama", both(kOne, {"precision.reduce=bf16", "precision.compute=bf16"})},
      {"gpt2", on(2, "{data: {kind: ddp, " + kSmallBuckets + "}}", {"train.batch.micro=2", "model.with.dropout=0.1"})},
      {"llama", on(4, "{data: {kind: fsdp, replicate: 2}, wrap: {policy: transformer}}", {"train.clip_norm=0.5"})},
      {"gpt2", on(2, "{data: {kind: zero1, compression: int8, " + kSmallBuckets + "}}"), false},
      {"gpt2", on(2, "{data: {kind: local_sgd, every: 2}}"), false},
      {"gpt2", on(4, "{tensor: {degree: 2, sequence_parallel: true}, pipeline: {degree: 2}}",
                  {"train.batch.micro=2", "train.clip_norm=0.5"})},
      {"llama", on(2, "{pipeline: {degree: 2, schedule: zb_h1}}", {"train.batch.micro=1"})},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    CAPTURE(i);
    const TinyJobs jobs;
    const Trained plain = run(jobs.load(one.model, "plain", one.overrides));
    const Trained fixed = run(jobs.load(one.model, "fixed", both(one.overrides, {"precision.loss_scale=1024"})));
    CHECK(fixed.loss == plain.loss);
    CHECK(fixed.grad_norm == plain.grad_norm);
    CHECK(parameters_of(fixed) == parameters_of(plain));
    CHECK(fixed.loss_scale == std::vector<double>(6, 1024));
    CHECK(plain.loss_scale.empty());
    if (!one.scales_dynamically) continue;
    const Trained dynamic =
        run(jobs.load(one.model, "dynamic", both(one.overrides, {"precision.loss_scale={growth_interval: 2}"})));
    CHECK(dynamic.loss == plain.loss);
    CHECK(dynamic.grad_norm == plain.grad_norm);
    CHECK(parameters_of(dynamic) == parameters_of(plain));
    CHECK(dynamic.loss_scale == scales_by_grad_scaler({}, 6, 65536, 2));
    CHECK(dynamic.skipped.empty());
  }
}

TEST_CASE("steps that overflow are left out on all ranks alike, and the scale goes the way of GradScaler") {
  const TinyJobs jobs;
  const Overrides job = both(large_features(jobs), {kRestless, "train.steps=24"});
  const Trained alone = run(jobs.load("mlp", "one", both(kOne, job)));
  REQUIRE(alone.skipped.size() >= 6);
  REQUIRE(alone.skipped.size() <= 16);
  REQUIRE(alone.skipped.back() >
          alone.skipped[0] + static_cast<std::int64_t>(alone.skipped.size()));  // not only at the start
  CHECK(alone.loss_scale == scales_by_grad_scaler(alone.skipped, 24, kLargest, 3));
  for (std::int64_t step : alone.skipped) CHECK_FALSE(std::isfinite(alone.grad_norm[static_cast<std::size_t>(step)]));
  const std::vector<std::pair<int, std::string>> strategies{
      {4, "{data: {kind: ddp, " + kSmallBuckets + "}}"},
      {4, "{data: {kind: zero1, " + kSmallBuckets + "}}"},
      {4, "{data: {kind: zero2, " + kSmallBuckets + "}}"},
      {4, "{data: {kind: fsdp, replicate: 2}, wrap: {policy: size, min_params: 500}}"},
      {2, "{tensor: {degree: 2}}"},
      {2, "{pipeline: {degree: 2}}"},
      {4, "{pipeline: {degree: 2, schedule: zb_h2}, data: {kind: zero1}}"}};
  for (std::size_t i = 0; i < strategies.size(); ++i) {
    CAPTURE(strategies[i].second);
    const Trained got =
        run(jobs.load("mlp", "ranks" + std::to_string(i),
                      on(strategies[i].first, strategies[i].second, both(job, {"train.batch.micro=1"}))));
    CHECK(got.skipped == alone.skipped);
    CHECK(got.loss_scale == alone.loss_scale);
    // Slices and stages are each updated by their own rank: had one updated where the others did not, its weights would
    // be off by a whole step of up to lr = 1e-2. Otherwise they differ by sums in another order, through AdamW's eps of
    // 1e-3.
    CHECK(largest_difference(weights_of(got.report.checkpoint), weights_of(alone.report.checkpoint)) < 1e-4);
  }
}

TEST_CASE("a step that is left out changes nothing but the scale") {
  const TinyJobs jobs;
  const Overrides job = both(both(kOne, large_features(jobs)), {kRestless, "checkpoint.every=1"});
  const Trained one = run(jobs.load("mlp", "one", both(job, {"train.steps=2", "train.lr_schedule.warmup_steps=0"})));
  REQUIRE(one.skipped == std::vector<std::int64_t>{0, 1});
  Tensors before = tensors_of(jobs.path("one/step-00000001")), after = tensors_of(jobs.path("one/step-00000002"));
  CHECK(before.at("loss_scale") == std::vector<float>{0x1p125F});
  CHECK(after.at("loss_scale") == std::vector<float>{0x1p124F});
  before.erase("loss_scale"), after.erase("loss_scale");
  CHECK(largest_difference(before, after) == 0);
}

TEST_CASE("a run under a dynamic loss scale that is resumed at any step gives the bits of one that was not") {
  for (int ranks : {1, 2}) {
    CAPTURE(ranks);
    const TinyJobs jobs;
    const Overrides job = both(ranks == 1 ? kOne
                                          : on(2, "{data: {kind: fsdp}, wrap: {policy: size, min_params: 500}}",
                                               {"checkpoint.format=sharded"}),
                               both(large_features(jobs), {kRestless, "train.steps=18"}));
    const Trained whole = run(jobs.load("mlp", "whole", both(job, {"checkpoint.every=1"})));
    REQUIRE(whole.skipped.size() >= 4);
    REQUIRE(whole.skipped.size() <= 14);
    for (int step = 1; step < 18; ++step) {
      CAPTURE(step);
      const std::string folder = "from" + std::to_string(step);
      copy_step(jobs, "whole", step, folder);
      const Trained resumed = run(jobs.load("mlp", folder, job));
      CHECK(resumed.report.first_step == step);
      CHECK(resumed.loss_scale == std::vector<double>(whole.loss_scale.begin() + step, whole.loss_scale.end()));
      CHECK(resumed.loss == std::vector<double>(whole.loss.begin() + step, whole.loss.end()));
      CHECK(files_of(resumed.report.checkpoint) == files_of(whole.report.checkpoint));
    }
  }
}

TEST_CASE(
    "a dynamic scale begins anew from a checkpoint that has none, and a job without one does not mind what was saved") {
  const TinyJobs jobs;
  run(jobs.load("mlp", "plain", both(kOne, {"train.steps=2"})));
  run(jobs.load("mlp", "scaled",
                both(kOne, {"train.steps=2", "precision.loss_scale={init_scale: 4096.0, growth_interval: 2}"})));
  const Trained begun = run(jobs.load("mlp", "plain", both(kOne, {"train.steps=4", "precision.loss_scale=dynamic"})));
  CHECK(begun.loss_scale == std::vector<double>(2, 65536));
  const Trained gone_on =
      run(jobs.load("mlp", "scaled", both(kOne, {"train.steps=4", "precision.loss_scale=dynamic"})));
  CHECK(gone_on.loss_scale == std::vector<double>(2, 8192));
  const Trained without = run(jobs.load("mlp", "scaled", both(kOne, {"train.steps=6"})));
  CHECK(without.report.first_step == 4);
  CHECK(std::isfinite(without.loss.back()));
}

TEST_CASE("what compression has not sent yet is resumed in the loss scale of the job") {
  const TinyJobs jobs;
  const Overrides job =
      on(2, "{data: {kind: zero1, compression: int8, " + kSmallBuckets + "}}", {"checkpoint.every=3"});
  run(jobs.load("gpt2", "whole", both(job, {"precision.loss_scale=1024"})));
  const auto resumed = [&](const std::string& folder, const std::string& scale) {
    std::filesystem::create_directories(jobs.path(folder));
    std::filesystem::copy(jobs.path("whole/step-00000003"), jobs.path(folder + "/step-00000003"),
                          std::filesystem::copy_options::recursive);
    return run(jobs.load("gpt2", folder, both(job, {"precision.loss_scale=" + scale})));
  };
  const Trained same = resumed("same", "1024"), none = resumed("none", "none"), larger = resumed("larger", "65536");
  CHECK(none.report.first_step == 3);
  for (const Trained* other : {&none, &larger}) {
    CHECK(other->loss == same.loss);
    CHECK(parameters_of(*other) == parameters_of(same));
  }
}

TEST_CASE("overflow at a fixed scale is an error that has the scale, and at a dynamic one only at its smallest") {
  const TinyJobs jobs;
  const Overrides job = both(kOne, large_features(jobs));
  const std::string fixed =
      message_of<NonFiniteError>([&] { run(jobs.load("mlp", "fixed", both(job, {"precision.loss_scale=8.5e37"}))); });
  INFO(fixed);
  CHECK(contains(fixed, "step 0: loss "));
  CHECK(contains(fixed,
                 "at loss scale 8.5e+37: the first tensor that is not finite is unit.0.gradient (element 37), written "
                 "by head in micro-batch 0"));

  const std::string floor =
      "precision.loss_scale={init_scale: 85070591730234615865843651857942052864.0, largest_scale: "
      "85070591730234615865843651857942052864.0, "
      "smallest_scale: 42535295865117307932921825928971026432.0}";
  const std::string dynamic = message_of<NonFiniteError>([&] { run(jobs.load("mlp", "dynamic", both(job, {floor}))); });
  CHECK(contains(dynamic, "step 1: loss "));
  CHECK(contains(dynamic,
                 "at the smallest loss scale, 4.2535296e+37: the first tensor that is not finite is unit.0.gradient"));
  CHECK(contains(dynamic, "the update was not made"));
}

TEST_CASE("a loss that no scale makes finite ends a dynamic run after as many steps as the scale has halves") {
  const TinyJobs jobs;
  std::string table;
  for (int row = 0; row < 16; ++row)
    table += std::string(row % 8 == 6 ? "3.0e38,3.0e38,3.0e38,3.0e38,3.0e38,3.0e38," : "0.5,0.5,0.5,0.5,0.5,0.5,") +
             std::to_string(row % 4) + "\n";
  jobs.write("infinite.csv", table);
  const Overrides job{"data.train=" + jobs.path("infinite.csv"), "data.normalize=none", "data.shuffle=false",
                      "train.steps=40", "precision.loss_scale=dynamic"};
  for (int ranks : {1, 4}) {
    const std::string message = message_of<NonFiniteError>([&] {
      run(jobs.load("mlp", "run" + std::to_string(ranks),
                    both(on(ranks, "{data: {kind: zero1, " + kSmallBuckets + "}}"), job)));
    });
    CHECK(contains(message, "step 16: loss "));  // 65536 = 2^16
    CHECK(contains(message, "at the smallest loss scale, 1: the first tensor that is not finite is stem"));
  }
}
