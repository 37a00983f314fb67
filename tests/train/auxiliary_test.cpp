// A second loss in the middle of a model, which ranks train as one rank does: where a pipeline has it on another stage
// than the loss, too. That its gradient is the right one is tested against PyTorch (models/expert_training_test.cpp).
#include <doctest/doctest.h>

#include <cmath>

#include "engine/train/compare.h"
#include "tests/train/tiny_jobs.h"

namespace trainer::tests::auxiliary_test {
namespace {

constexpr const char* kGraph = R"(
name: two_losses
params: {weight: 0.5, features: 6, classes: 4, hidden: 8, layers: 1, dropout: 0.0, act: gelu}
inputs:
  features: {dtype: f32, shape: [batch, 6]}
  targets: {dtype: i32, shape: [batch]}
nodes:
  - {name: h.0, block: Layer, input: features, nodes: [{name: fc, op: linear, out: 8}, {name: act, op: gelu}]}
  - {name: early, op: linear, out: 4}
  - {name: early_loss, op: cross_entropy, input: [early, targets]}
  - {name: h.1, block: Layer, input: h.0, nodes: [{name: fc, op: linear, out: 8}, {name: act, op: gelu}]}
  - {name: late, op: linear, out: 4}
  - {name: loss, op: cross_entropy, input: [late, targets]}
outputs: {loss: loss, logits: late, auxiliary: {loss: early_loss, weight: "${weight}"}}
)";

const Compiler kCompile = [](const LoadedJob& loaded) { return compiled(loaded); };

LoadedJob job_on(const TinyJobs& jobs, const std::string& strategy, Overrides more = {}) {
  more.push_back("model.graph=" + jobs.write("two_losses.yaml", kGraph));
  more.push_back("cluster.devices_per_node=2");
  more.push_back("strategy=" + strategy);
  return jobs.load("mlp", "run", more);
}

}  // namespace

TEST_CASE("ranks train an auxiliary loss as one rank does, and it counts by its weight") {
  const TinyJobs jobs;
  for (const std::string strategy :
       {"ddp", "fsdp", "{pipeline: {degree: 2}}", "{pipeline: {degree: 2, schedule: zb_h1}}"}) {
    CAPTURE(strategy);
    const LoadedJob ranks = on_threads(job_on(jobs, strategy, {"train.batch.micro=2"}), kCompile);
    const LoadedJob one = on_one_rank(ranks, 4);
    for (const Quantity& quantity : compare(ranks, one, 4, kCompile).quantities) {
      CAPTURE(quantity.name);
      CHECK(quantity.holds());
    }
    LoadedJob other = ranks;
    other.job.model.with["weight"] = ParamValue(0.45);
    CHECK_FALSE(compare(other, one, 4, kCompile).holds());
  }
}

TEST_CASE(
    "an auxiliary loss is told as a mean over its own targets, in training and evaluation, on every strategy alike") {
  const std::vector<std::string> more{"train.batch.micro=2", "eval={every: 3}", "data.val=0.2"};
  std::vector<Trained> runs;
  for (const std::string strategy : {"ddp", "{pipeline: {degree: 2}}"}) {
    const TinyJobs jobs;
    runs.push_back(run(job_on(jobs, strategy, more)));
  }
  for (const Trained& one : runs) {
    REQUIRE(one.figures.size() == 6);
    for (std::size_t step = 0; step < 6; ++step) {
      REQUIRE(one.figures[step].size() == 1);
      CHECK(one.figures[step][0].first == "early_loss");
      CHECK(one.figures[step][0].second == doctest::Approx(runs[0].figures[step][0].second).epsilon(1e-5));
    }
    REQUIRE(one.evaluations.size() == 2);
    CHECK(one.evaluations[1].figures.at(0).first == "val_early_loss");
    CHECK(one.evaluations[1].figures.at(0).second ==
          doctest::Approx(runs[0].evaluations[1].figures.at(0).second).epsilon(1e-5));
  }
  CHECK(runs[0].figures[0][0].second == doctest::Approx(std::log(4.0)).epsilon(0.2));  // of four classes at first
  CHECK(runs[0].figures[5][0].second < runs[0].figures[0][0].second);
}

}  // namespace trainer::tests::auxiliary_test
