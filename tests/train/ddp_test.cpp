// Data parallel training is one rank's training: losses, gradient norms and weights of 2 and 4 ranks against one rank
// at the same global batch; and the reductions go on during the backward pass.
//
// Bounds. Every sample is computed alone, so ranks change the order of sums over the n = 64 terms (8 samples of 8
// tokens) of a gradient and nothing else; sums are in f32 whatever the compute dtype. With u the unit roundoff of f32:
//   gradients, relative to their norm              γ = 2 n u = 7.6e-6 (both orders err)
//   losses and norms of step t                     (t + 1) γ
//   weights after T steps of AdamW, by its eps e   T · lr · 2 γ norm / e: 2% of the way they have gone at most
// In bf16, u' its unit roundoff, the first loss is as close. But a gradient that passes a sum over samples on (that of
// positions) is rounded once for each micro-batch, and a master weight that differs in its last bits may round to the
// neighbouring bf16 value: u' here and there. A norm, and an update relative to its size, collect several such: 8 u'
// and 16 u' = 3% bound them; a loss is a mean over 64 tokens: 2 u'.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr double kSteps = 6, kLr = 1e-2, kEps = 1e-3, kTerms = 64;

Overrides ranks(int number, int accumulation) {
  return {"cluster.devices_per_node=" + std::to_string(number), "strategy.data.kind=ddp",
          "strategy.data.bucket_mb=0.004", "train.batch.micro=" + std::to_string(8 / number / accumulation)};
}

double relative(double got, double want) { return std::fabs(got - want) / std::fabs(want); }

void check_same(const Trained& got, const Trained& want, bool bf16) {
  REQUIRE(got.loss.size() == want.loss.size());
  REQUIRE(got.loss.size() == static_cast<std::size_t>(kSteps));
  const double gamma = 2 * kTerms * kRoundoffF32;
  double norm = 0;
  for (std::size_t step = 0; step < got.loss.size(); ++step) {
    CAPTURE(step);
    const double grown = static_cast<double>(step + 1) * gamma;
    CHECK(relative(got.loss[step], want.loss[step]) < (bf16 && step > 0 ? 2 * kRoundoffBf16 : grown));
    CHECK(relative(got.grad_norm[step], want.grad_norm[step]) < (bf16 ? 8 * kRoundoffBf16 : grown));
    norm = std::fmax(norm, want.grad_norm[step]);
  }
  const double bound = kSteps * kLr * (bf16 ? 16 * kRoundoffBf16 : 2 * gamma * norm / kEps);
  CHECK(largest_difference(weights_of(got.report.checkpoint), weights_of(want.report.checkpoint)) < bound);
}

}  // namespace

TEST_CASE("scaled activations, partial sums and logits train over any axis as on one rank") {
  const TinyJobs jobs;
  jobs.write("scaled.yaml", R"(
seed: 7
model:
  graph:
    name: scaled
    inputs: {features: {dtype: f32, shape: [batch, 6]}, targets: {dtype: i32, shape: [batch]}}
    nodes:
      - {name: in, op: linear, input: features, out: 32, init: {uniform: 0.4}}
      - {name: half, op: scale, factor: 0.5}
      - {name: act, op: tanh}
      - {name: mid, op: linear, out: 8, init: {uniform: 0.3}}
      - {name: twice, op: scale, factor: 2}
      - {name: out, op: linear, out: 4, init: {uniform: 0.3}}
      - {name: scores, op: scale, factor: -3}
      - {name: loss, op: cross_entropy, input: [scores, targets]}
    outputs: {loss: loss, logits: scores}
data: {format: table, train: table.csv, target: -1, normalize: standard}
train:
  steps: 6
  batch: {global: 8, micro: 2}
  optimizer: {name: adamw, lr: 1.0e-2, betas: [0.9, 0.95], eps: 1.0e-3, weight_decay: 0.1}
  clip_norm: null
)");
  int folder = 0;
  const auto trained = [&](const Overrides& overrides) {
    return run(jobs.load("scaled", "run" + std::to_string(folder++), overrides));
  };
  const Trained want = trained({});
  CHECK(want.loss.back() < want.loss.front());
  for (const Overrides& two : {ranks(2, 2), Overrides{"cluster.devices_per_node=2", "strategy={tensor: {degree: 2}}"},
                               Overrides{"cluster.devices_per_node=2", "strategy={pipeline: {degree: 2}}"}}) {
    CAPTURE(two[1]);
    check_same(trained(two), want, false);
  }
}

TEST_CASE("ranks train as one") {
  const TinyJobs jobs;
  int folder = 0;
  const auto trained = [&](const std::string& model, const Overrides& overrides) {
    return run(jobs.load(model, "run" + std::to_string(folder++), overrides));
  };
  struct Case {
    const char* model;
    Overrides overrides;
  };
  const std::vector<Case> cases{
      {"gpt2", {}},
      {"gpt2", {"train.clip_norm=0.5", "model.with.dropout=0.1"}},
      {"gpt2", {"precision.compute=bf16", "model.with.dropout=0.1"}},
      {"llama", {"train.clip_norm=0.5"}},
      {"llama", {"precision.compute=bf16"}},
      {"mlp", {"model.with.dropout=0.1"}},
      {"mlp", {"train.clip_norm=0.5", "precision.compute=bf16"}},
  };
  for (const Case& one : cases) {
    CAPTURE(std::string(one.model));
    CAPTURE(one.overrides.size());
    bool bf16 = false;
    for (const std::string& text : one.overrides) bf16 = bf16 || text == "precision.compute=bf16";
    const Trained alone = trained(one.model, both(ranks(1, 1), one.overrides));
    for (const auto& [number, accumulation] : {std::pair(1, 4), std::pair(2, 1), std::pair(2, 2), std::pair(4, 1)}) {
      CAPTURE(number);
      CAPTURE(accumulation);
      check_same(trained(one.model, both(ranks(number, accumulation), one.overrides)), alone, bf16);
    }
  }
}

TEST_CASE("targets ignored on one rank alone weigh nothing") {
  // Of each 8 samples the first 4 have class 2, which is ignored, but for one: of 2 ranks the first counts 1 target,
  // the second 4.
  const TinyJobs jobs;
  std::string table;
  for (int row = 0; row < 40; ++row) {
    for (int column = 0; column < 3; ++column) table += std::to_string(std::sin(row * 3 + column + 1)) + ",";
    table += std::to_string(row % 8 < 4 && row % 8 != 1 ? 2 : row % 2) + "\n";
  }
  jobs.write("ignored.csv", table);
  jobs.write("ignored.yaml", R"(
seed: 7
model:
  graph:
    name: classifier
    inputs:
      features: {dtype: f32, shape: [batch, 3]}
      targets:  {dtype: i32, shape: [batch]}
    nodes:
      - {name: fc1, op: linear, input: features, out: 16, init: {normal: 0.5}}
      - {name: act, op: tanh}
      - {name: fc2, op: linear, out: 3, init: {normal: 0.5}}
      - {name: loss, op: cross_entropy, input: [fc2, targets], ignore_index: 2}
    outputs: {loss: loss, logits: fc2}
data: {format: table, train: ignored.csv, target: -1, shuffle: false}
train:
  steps: 6
  batch: {global: 8, micro: auto}
  optimizer: {name: adamw, lr: 1.0e-2, betas: [0.9, 0.95], eps: 1.0e-3, weight_decay: 0.1}
  clip_norm: null
)");
  const Trained alone = run(jobs.load("ignored", "alone"));
  check_same(run(jobs.load("ignored", "two", ranks(2, 2))), alone, false);
  check_same(run(jobs.load("ignored", "four", ranks(4, 1))), alone, false);
}
