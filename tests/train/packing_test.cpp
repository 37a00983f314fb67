// Packed equals unpacked: documents that share rows train a GPT-2, a Llama, a mixture of experts and latent attention
// as the same documents in rows of their own do, on one rank and under strategies that cut heads, samples, layers and
// the sequence. Lengths go from one token to a whole row; documents cross the border of a sequence that is cut in two.
// And however a batch is split over micro-batches, ranks and packed rows, its gradient is the mean over its targets, of
// which every part has another number, some none.
//
// Bounds in f32, as of equivalence_test.cpp: packing changes the order of sums over up to n = 128 targets, and the
// blocks in which a document is worked on. With u the unit roundoff and γ = 8 √n u: gradients to γ of their norm,
// losses and norms of step t to (t + 1) γ, weights after T steps of AdamW with eps e to T · lr · 2 γ norm / e.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "engine/checkpoint/safetensors.h"
#include "engine/core/error.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr std::int64_t kSeq = 24, kRows = 4, kSteps = 10;
constexpr double kEps = 0.1, kRate = 1e-2;
const double kGamma = 8 * std::sqrt(128.0) * kRoundoffF32;

/// Of the rows of each step: 12 documents, and padding.
const std::vector<std::vector<std::int64_t>> kLengths[] = {
    {{24}, {1, 1, 2, 3, 5, 7}, {12, 12}, {2, 20, 1}},
    {{23, 1}, {10, 3, 11}, {1, 1, 1, 1, 1}, {6, 17}},
};
constexpr std::int64_t kDocuments = 12;

/// Fields of samples of kSeq tokens.
class Samples {
 public:
  void add_row() {
    ++rows_;
    for (auto* field : {&tokens_, &targets_, &documents_})
      field->resize(static_cast<std::size_t>(rows_ * kSeq), field == &tokens_ ? 0 : field == &targets_ ? -100 : -1);
  }
  /// A document at place `at` of the last row. Its last token has no target, nor have the first `prompt` ones.
  void add(const std::vector<std::int32_t>& ids, std::int64_t at, std::int32_t number, std::size_t prompt = 0) {
    const std::size_t first = static_cast<std::size_t>((rows_ - 1) * kSeq + at);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      tokens_[first + i] = ids[i];
      documents_[first + i] = number;
      if (i > prompt) targets_[first + i - 1] = ids[i];
    }
  }
  void write(const std::string& path, bool with_documents) const {
    const Shape shape{rows_, kSeq};
    std::vector<checkpoint::TensorSpec> specs{{"tokens", DType::i32, shape}, {"targets", DType::i32, shape}};
    if (with_documents) specs.push_back({"documents", DType::i32, shape});
    checkpoint::SafetensorsWriter writer(path, specs, {});
    for (const checkpoint::TensorSpec& spec : writer.order()) {
      const auto& field = spec.name == "tokens" ? tokens_ : spec.name == "targets" ? targets_ : documents_;
      writer.write(spec.name, field.data(), spec.bytes());
    }
    writer.finish();
  }

 private:
  std::int64_t rows_ = 0;
  std::vector<std::int32_t> tokens_, targets_, documents_;
};

class Jobs {
 public:
  Jobs() {
    std::mt19937 random(5);
    Samples packed, alone;
    for (std::int64_t step = 0; step < kSteps; ++step)
      for (const std::vector<std::int64_t>& row : kLengths[step % 2]) {
        packed.add_row();
        std::int64_t at = 0;
        for (std::size_t i = 0; i < row.size(); ++i) {
          std::vector<std::int32_t> ids(static_cast<std::size_t>(row[i]));
          for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 32);
          packed.add(ids, at, static_cast<std::int32_t>(i));
          alone.add_row();
          alone.add(ids, 0, 0);
          at += row[i];
        }
      }
    packed.write(jobs_.path("packed.safetensors"), true);
    alone.write(jobs_.path("alone.safetensors"), false);
    write("gpt",
          "{graph: models/gpt2.yaml, with: {layers: 2, heads: 2, dim: 16, vocab: 32, context: 24, dropout: 0.0}}");
    write("llama",
          "{graph: models/llama.yaml, with: {layers: 2, heads: 4, kv_heads: 2, dim: 16, hidden: 24, vocab: 32, "
          "rope_theta: 100}}");
    write("experts",
          "{graph: models/decoder.yaml, with: {layers: 2, heads: 4, kv_heads: 2, head_dim: 4, dim: 16, hidden: 24, "
          "vocab: 32, rope_theta: 100, sparse: true, experts: 4, top_k: 2, expert_hidden: 8, init: 0.2}}");
    write("latent",
          "{graph: models/decoder.yaml, with: {layers: 2, heads: 4, kv_heads: 4, head_dim: 8, kv_rank: 10, q_rank: 6, "
          "rope_dim: 4, v_dim: 6, rope_partial: 0.5, rope_style: interleaved, dim: 16, hidden: 24, vocab: 32, "
          "rope_theta: 100, sparse: [false, true], experts: 4, top_k: 2, expert_hidden: 8, router_score: sigmoid, "
          "router_groups: 2, router_balance: bias, balance_rate: 0, router_scale: 2.5, shared_hidden: 8, "
          "shared_gate: false, init: 0.2}}");
  }

  Trained train(const std::string& model, bool packed, Overrides overrides) {
    const std::string name = packed ? "packed" : "alone";
    const std::string fields = packed ? ", documents: documents" : "";
    overrides = both({"data.train=" + jobs_.path(name + ".safetensors"),
                      "data.fields={tokens: tokens, targets: targets" + fields + "}",
                      "train.batch.global=" + std::to_string(packed ? kRows : kDocuments)},
                     overrides);
    return run(jobs_.load(model, "run" + std::to_string(++runs_), overrides));
  }
  LoadedJob load(const std::string& model, const Overrides& overrides) { return jobs_.load(model, "one", overrides); }
  std::string path(const std::string& name) const { return jobs_.path(name); }

 private:
  void write(const std::string& name, const std::string& model) const {
    jobs_.write(name + ".yaml", "seed: 7\nmodel: " + model + R"(
data: {format: tensors, train: none, seq_len: 24, shuffle: false}
train:
  steps: 10
  batch: {global: 4, micro: auto}
  optimizer: {name: adamw, lr: 1.0e-2, betas: [0.9, 0.95], eps: 0.1, weight_decay: 0.1}
  lr_schedule: {name: constant, warmup_steps: 0}
  clip_norm: null
precision: {params: f32, compute: f32, reduce: f32, loss_scale: none}
checkpoint: {every: 1000000, keep: null, format: full, resume: none}
)");
  }

  TinyJobs jobs_;
  int runs_ = 0;
};

double relative(double got, double want) { return std::fabs(got - want) / std::fabs(want); }

void check_same(const Trained& got, const Trained& want) {
  REQUIRE(want.loss.size() == static_cast<std::size_t>(kSteps));
  REQUIRE(got.loss.size() == want.loss.size());
  double norm = 0;
  for (std::size_t step = 0; step < want.loss.size(); ++step) {
    CAPTURE(step);
    CHECK(relative(got.loss[step], want.loss[step]) < static_cast<double>(step + 1) * kGamma);
    CHECK(relative(got.grad_norm[step], want.grad_norm[step]) < static_cast<double>(step + 1) * kGamma);
    norm = std::fmax(norm, want.grad_norm[step]);
  }
  const double bound = static_cast<double>(kSteps) * kRate * 2 * kGamma * norm / kEps;
  CHECK(largest_difference(weights_of(got.report.checkpoint), weights_of(want.report.checkpoint)) < bound);
  CHECK(got.report.planned_peak_bytes == got.report.allocated_bytes);
}

const char* const kModels[] = {"gpt", "llama", "experts", "latent"};

const std::pair<const char*, Overrides> kStrategies[] = {
    {"one rank", {}},
    {"micro-batches, recomputed", {"train.batch.micro=1", "activation_checkpointing.mode=full"}},
    {"tensor", {"cluster.devices_per_node=2", "strategy.tensor.degree=2"}},
    {"sequence parallel", {"cluster.devices_per_node=2", "strategy.tensor={degree: 2, sequence_parallel: true}"}},
    {"fsdp", {"cluster.devices_per_node=2", "strategy.data.kind=fsdp"}},
    {"pipeline",
     {"cluster.devices_per_node=2", "strategy.pipeline={degree: 2, schedule: 1f1b}", "train.batch.micro=1"}},
    {"context", {"cluster.devices_per_node=2", "strategy.context.degree=2"}},
    {"ring", {"cluster.devices_per_node=2", "strategy.context={degree: 2, kind: ring}"}},
    {"ring of four", {"cluster.devices_per_node=4", "strategy.context={degree: 4, kind: ring}"}},
    {"tensor, pipeline and ring",
     {"cluster.devices_per_node=8", "strategy.tensor.degree=2", "strategy.context={degree: 2, kind: ring}",
      "strategy.pipeline={degree: 2, schedule: gpipe}", "train.batch.micro=2"}},
    {"tensor, pipeline and context",
     {"cluster.devices_per_node=8", "strategy.tensor.degree=2", "strategy.context.degree=2",
      "strategy.pipeline={degree: 2, schedule: gpipe}", "train.batch.micro=2"}},
};

}  // namespace

TEST_CASE("packed documents train as in rows of their own, under every way to cut the model") {
  Jobs jobs;
  for (const char* model : kModels) {
    CAPTURE(model);
    const Trained want = jobs.train(model, false, {});
    for (const auto& [name, overrides] : kStrategies) {
      CAPTURE(name);
      check_same(jobs.train(model, true, overrides), want);
    }
  }
}

TEST_CASE("packed documents give every gradient that they give in rows of their own") {
  // After one step of SGD at a rate of 1 the weights have moved by the gradients.
  const Overrides sgd{"train.steps=1", "train.optimizer={name: sgd, lr: 1.0, momentum: 0.0, weight_decay: 0.0}"};
  Jobs jobs;
  for (const char* model : kModels) {
    CAPTURE(model);
    const Trained want = jobs.train(model, false, sgd);
    const Tensors of_want = weights_of(want.report.checkpoint);
    const Trained packed = jobs.train(model, true, sgd);
    double largest = 0;  // of a weight, whose rounding is in the difference
    for (const auto& [name, values] : of_want)
      for (const float x : values) largest = std::fmax(largest, std::fabs(x));
    const double bound = kGamma * want.grad_norm[0] + 2 * kRoundoffF32 * largest;
    CHECK(largest_difference(weights_of(packed.report.checkpoint), of_want) < bound);
    // What is compared is far from nothing, and documents matter.
    const Trained joined = jobs.train(model, true, both(sgd, {"data.fields={tokens: tokens, targets: targets}"}));
    CHECK(largest_difference(weights_of(joined.report.checkpoint), of_want) > 1e3 * bound);
  }
}

TEST_CASE(
    "any split of a batch over micro-batches, ranks and packed rows gives the gradient of the mean over targets") {
  const Overrides sgd{"train.steps=1", "train.optimizer={name: sgd, lr: 1.0, momentum: 0.0, weight_decay: 0.0}"};
  Jobs jobs;
  // The first step's documents; of every second one a prompt of two thirds is not trained.
  Samples packed, alone, halves[2];
  std::mt19937 random(6);
  std::int64_t written = 0;
  for (const std::vector<std::int64_t>& row : kLengths[0]) {
    packed.add_row();
    std::int64_t at = 0;
    for (std::size_t i = 0; i < row.size(); ++i, ++written) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(row[i]));
      for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 32);
      const std::size_t prompt = written % 2 == 0 ? ids.size() * 2 / 3 : 0;
      packed.add(ids, at, static_cast<std::int32_t>(i), prompt);
      for (Samples* samples : {&alone, &halves[written < kDocuments / 2 ? 0 : 1]}) {
        samples->add_row();
        samples->add(ids, 0, 0, prompt);
      }
      at += row[i];
    }
  }
  REQUIRE(written == kDocuments);
  packed.write(jobs.path("split_packed.safetensors"), true);
  alone.write(jobs.path("split_alone.safetensors"), false);
  for (const int half : {0, 1}) halves[half].write(jobs.path("half" + std::to_string(half) + ".safetensors"), false);
  const auto data = [&](const std::string& name) {
    return both(sgd, {"data.train=" + jobs.path(name + ".safetensors")});
  };
  for (const char* model : kModels) {
    CAPTURE(model);
    const Trained want = jobs.train(model, false, both(data("split_alone"), {"train.batch.micro=12"}));
    const Tensors of_want = weights_of(want.report.checkpoint);
    double largest = 0;  // of a weight, whose rounding is in the difference
    for (const auto& [name, values] : of_want)
      for (const float x : values) largest = std::fmax(largest, std::fabs(x));
    const double bound = kGamma * want.grad_norm[0] + 2 * kRoundoffF32 * largest;
    const auto check = [&](bool is_packed, int ranks, int micro, const std::string& strategy) {
      CAPTURE(is_packed);
      CAPTURE(ranks);
      CAPTURE(micro);
      CAPTURE(strategy);
      const Overrides split{"train.batch.micro=" + std::to_string(micro), "strategy=" + strategy,
                            "cluster.devices_per_node=" + std::to_string(ranks)};
      const Trained got = jobs.train(model, is_packed, both(data(is_packed ? "split_packed" : "split_alone"), split));
      CHECK(relative(got.loss[0], want.loss[0]) < kGamma);
      CHECK(relative(got.grad_norm[0], want.grad_norm[0]) < kGamma);
      CHECK(largest_difference(weights_of(got.report.checkpoint), of_want) < bound);
    };
    for (const int ranks : {1, 2, 3, 4})
      for (const int micro : {1, 2, 3, 4, 6})
        if (kDocuments % (ranks * micro) == 0) check(false, ranks, micro, "ddp");
    for (const int ranks : {1, 2, 4})
      for (const int micro : {1, 2, 4})
        if (kRows % (ranks * micro) == 0) check(true, ranks, micro, "ddp");
    for (const char* strategy : {"zero2", "fsdp", "{pipeline: {degree: 2, schedule: 1f1b}}"}) {
      check(false, 2, 3, strategy);
      check(true, 2, 1, strategy);
    }
    // The mean of the means of two halves is another gradient.
    Tensors mean;
    for (const int half : {0, 1}) {
      const Trained one = jobs.train(model, false, both(data("half" + std::to_string(half)), {"train.batch.global=6"}));
      for (const auto& [name, values] : weights_of(one.report.checkpoint)) {
        mean[name].resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) mean[name][i] += values[i] / 2;
      }
    }
    CHECK(largest_difference(mean, of_want) > 1e3 * bound);
  }
}

TEST_CASE("bf16: packed documents lose as in rows of their own") {
  Jobs jobs;
  for (const char* model : kModels) {
    CAPTURE(model);
    const Trained want = jobs.train(model, false, {"precision.compute=bf16"}),
                  got = jobs.train(model, true, {"precision.compute=bf16"});
    for (std::size_t step = 0; step < want.loss.size(); ++step) {
      CHECK(relative(got.loss[step], want.loss[step]) < 2 * kRoundoffBf16);
      CHECK(relative(got.grad_norm[step], want.grad_norm[step]) < 8 * kRoundoffBf16);
    }
  }
}

TEST_CASE("numbers of documents that descend end the run with their place") {
  Jobs jobs;
  Samples samples;
  for (std::int64_t row = 0; row < kRows; ++row) {
    samples.add_row();
    samples.add({1, 2, 3}, 0, 1);
    if (row == 2) samples.add({4, 5}, 3, 0);
  }
  samples.write(jobs.path("wrong.safetensors"), true);
  CHECK_THROWS_WITH_AS(jobs.train("llama", true, {"data.train=" + jobs.path("wrong.safetensors"), "train.steps=1"}),
                       doctest::Contains("document 0 at position 3 of sample 2 of the batch: numbers of documents"),
                       DataError);
}
