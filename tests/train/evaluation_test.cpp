// Evaluation counts each sample once, and gives what a hand would.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

struct Row {
  std::vector<double> features;
  int target = 0;
};

std::vector<Row> rows_of(const std::string& path) {
  std::vector<Row> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::vector<double> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(std::stod(cell));
    rows.push_back({{cells.begin(), cells.end() - 1}, static_cast<int>(cells.back())});
  }
  return rows;
}

std::vector<double> linear(const Tensors& weights, const std::string& name, const std::vector<double>& x, bool relu) {
  const std::vector<float>&w = weights.at(name + ".weight"), &b = weights.at(name + ".bias");
  std::vector<double> y(b.begin(), b.end());
  for (std::size_t i = 0; i < y.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) y[i] += static_cast<double>(w[i * x.size() + j]) * x[j];
    if (relu) y[i] = std::fmax(y[i], 0.0);
  }
  return y;
}

std::vector<double> logits_of(const Tensors& weights, const std::vector<double>& features) {
  std::vector<double> x = linear(weights, "stem", features, true);
  for (const char* layer : {"layers.0.fc", "layers.1.fc"}) x = linear(weights, layer, x, true);
  return linear(weights, "head", x, false);
}

}  // namespace

TEST_CASE("evaluation gives the loss and accuracy of a hand's sum, whatever the batch and the ranks") {
  const TinyJobs jobs;
  const std::vector<Row> all = rows_of(jobs.path("table.csv"));
  std::string text;
  std::ifstream table(jobs.path("table.csv"));
  std::string line;
  for (int row = 0; row < 11 && std::getline(table, line); ++row) text += line + "\n";
  jobs.write("val.csv", text);
  const Overrides data{"data.normalize=none", "data.val=" + jobs.path("val.csv"), "eval.every=6", "eval.batches=100"};
  const Trained trained = run(jobs.load("mlp", "run", data));

  const Tensors weights = weights_of(trained.report.checkpoint);
  double loss = 0, right = 0;
  for (std::size_t row = 0; row < 11; ++row) {
    const std::vector<double> logits = logits_of(weights, all[row].features);
    double sum = 0;
    for (double logit : logits) sum += std::exp(logit);
    const double mine = logits[static_cast<std::size_t>(all[row].target)];
    loss += (std::log(sum) - mine) / 11;
    right += mine == *std::max_element(logits.begin(), logits.end()) ? 1.0 / 11 : 0;
  }
  CHECK(right > 0);
  CHECK(right < 1);
  // f32 against f64: products of at most 32 terms through four layers.
  const double tolerance = 4 * 32 * kRoundoffF32 * loss;
  REQUIRE(trained.evaluations.size() == 1);  // 11 samples in batches of 8: the last one is 3
  CHECK(trained.evaluations[0].step == 6);
  CHECK(std::fabs(trained.evaluations[0].val_loss - loss) < tolerance);
  CHECK(std::fabs(trained.evaluations[0].val_accuracy.value() - right) < 1e-12);

  for (const char* batch : {"train.batch={global: 1, micro: 1}", "train.batch={global: 4, micro: 2}",
                            "train.batch={global: 11, micro: 11}", "train.batch={global: 64, micro: 64}"}) {
    CAPTURE(std::string(batch));
    const LoadedJob loaded = jobs.load("mlp", "other", {data[0], data[1], batch});
    const EvaluationRecord record = evaluate(loaded, compiled(loaded, Purpose::evaluate), trained.report.checkpoint, 0);
    CHECK(std::fabs(record.val_loss - loss) < tolerance);
    CHECK(std::fabs(record.val_accuracy.value() - right) < 1e-12);
  }
  for (const char* ranks : {"2", "4"}) {  // one rank has nothing of the last batch
    const Trained shared =
        run(jobs.load("mlp", std::string("ranks") + ranks,
                      {data[0], data[1], data[2], data[3], std::string("cluster.devices_per_node=") + ranks,
                       "strategy=ddp", "train.steps=0", "model.init_from=" + trained.report.checkpoint}));
    REQUIRE(shared.evaluations.size() == 1);
    CHECK(std::fabs(shared.evaluations[0].val_loss - loss) < tolerance);
    CHECK(std::fabs(shared.evaluations[0].val_accuracy.value() - right) < 1e-12);
  }
}

TEST_CASE("a regression reads its targets as numbers, also where the first stage of a pipeline has none") {
  const TinyJobs jobs;
  std::string rows;
  for (int row = 0; row < 40; ++row)
    rows += std::to_string(row % 5) + ".5," + std::to_string(row % 7) + ".25," + std::to_string(row % 3) + ".75\n";
  jobs.write("numbers.csv", rows);
  jobs.write("regression.yaml",
             "name: regression\ninputs:\n  features: {dtype: f32, shape: [batch, 2]}\n  targets: {dtype: f32, shape: "
             "[batch, 1]}\nnodes:\n"
             "  - {name: stem, op: linear, input: features, out: 8, init: {normal: 0.4}}\n  - repeat: 4\n    name: "
             "\"layers.{index}\"\n    block: HiddenLayer\n    nodes:\n"
             "      - {name: fc, op: linear, out: 8, init: {normal: 0.4}}\n      - {name: act, op: tanh}\n"
             "  - {name: head, op: linear, out: 1, init: {normal: 0.3}}\n  - {name: loss, op: mse, input: [head, "
             "targets]}\noutputs: {loss: loss}\n");
  const Overrides job{"model={graph: " + jobs.path("regression.yaml") + "}", "data.train=" + jobs.path("numbers.csv"),
                      "train.batch.micro=4"};
  const auto losses = [&](const Overrides& more) {
    Overrides all = job;
    all.insert(all.end(), more.begin(), more.end());
    return run(from_the_start(jobs.load("mlp", "run", all))).loss;
  };
  const std::vector<double> alone = losses({"checkpoint.resume=none"});
  const std::vector<double> piped =
      losses({"checkpoint.resume=none", "cluster.devices_per_node=2", "strategy={pipeline: {degree: 2}}"});
  REQUIRE(alone.size() == piped.size());
  for (std::size_t step = 0; step < alone.size(); ++step)
    CHECK(piped[step] == doctest::Approx(alone[step]).epsilon(1e-5));
}
