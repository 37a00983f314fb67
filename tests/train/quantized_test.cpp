// Frozen weights in eight and four bits: that they are quantized as the formulas say, take the bytes that were
// promised, train adapters as the weights do that they stand for, on any ranks, and are what is merged.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/export/export.h"
#include "engine/run/quantized_weights.h"
#include "engine/train/check_files.h"
#include "engine/train/saved_facts.h"
#include "tests/reference/nf4.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

using reference::kNf4;

double nearest(std::span<const double> values, double x) {
  double best = values.front();
  for (const double value : values)
    if (std::abs(value - x) < std::abs(best - x)) best = value;
  return best;
}

/// Values of the signed dynamic code.
std::vector<double> dynamic_values() {
  std::vector<double> values{0, 1};
  for (int zeros = 0; zeros < 7; ++zeros)
    for (int step = 0; step < 64 >> zeros; ++step)
      for (const double sign : {1.0, -1.0})
        values.push_back(sign * std::pow(10.0, -zeros) * (0.1 + 0.9 * (step + 0.5) / (64 >> zeros)));
  return values;
}

/// Rows of normals, each tenth twenty times as large.
std::vector<float> matrix(std::int64_t rows, std::int64_t in) {
  std::vector<float> w(static_cast<std::size_t>(rows * in));
  fill_normal(3, 0, 0, rows * in, w.data());
  for (std::int64_t i = 0; i < rows * in; ++i) w[static_cast<std::size_t>(i)] *= i / in % 10 == 0 ? 1.0F : 0.05F;
  return w;
}

std::vector<float> rounded(Quantization as, const std::vector<float>& w, std::int64_t rows, std::int64_t in) {
  return dequantize_rows(as, quantize_rows(as, w.data(), rows, in), rows, in);
}

const Overrides kModel{"model.with.dim=64", "model.with.heads=4"};

/// A base in `base`, and jobs with an adapter of rank 4 beside it.
class Quantized {
 public:
  Quantized() { base = run(jobs.load("gpt2", "base", both(kModel, {"train.steps=0", "seed=5"}))).report.checkpoint; }

  LoadedJob load(const std::string& folder, const std::string& quantize, const Overrides& more = {}) const {
    return jobs.load(
        "gpt2", folder,
        both(both(kModel, {"adapter={rank: 4, alpha: 8}", "model.init_from=" + base, "model.quantize=" + quantize}),
             more));
  }

  /// The base with what `as` makes of its matrices in their place.
  std::string rounded_base(Quantization as) const {
    const checkpoint::Checkpoint opened = checkpoint::open_checkpoint(base);
    std::vector<checkpoint::TensorSpec> specs;
    Tensors values;
    for (const auto& [name, plain] : weights_of(base)) {
      const Shape shape = opened.tensors.find(name)->shape;
      specs.push_back({name, DType::f32, shape});
      const bool quantized = name.starts_with("h.") && shape.rank() == 2;
      values[name] = quantized ? rounded(as, plain, shape[0], shape[1]) : plain;
    }
    const std::string path = jobs.path("rounded_" + std::string(name_of(as)) + ".safetensors");
    checkpoint::SafetensorsWriter writer(path, specs, {});
    for (const checkpoint::TensorSpec& spec : writer.order())
      writer.write(spec.name, values.at(spec.name).data(), spec.shape.elements() * 4);
    writer.finish();
    return path;
  }

  const TinyJobs jobs;
  std::string base;
};

void check_losses(const std::vector<double>& got, const std::vector<double>& want, double epsilon) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(want[i]).epsilon(epsilon));
}

/// Bytes that rank 0 holds of quantized matrices, and the elements that they stand for.
struct Held {
  std::int64_t bytes = 0, elements = 0;
};
Held held_by(const CompiledJob& compiled) {
  Held held;
  for (const Unit& unit : compiled.plan.roles[0].units)
    for (const UnitTensor& tensor : unit.tensors) {
      if (!tensor.init.quantized) continue;
      CHECK(tensor.spec.dtype() == DType::u8);
      held.bytes += tensor.elements;
      if (tensor.init.quantized.kind == QuantizedPart::Kind::codes)
        held.elements += tensor.init.quantized.shape.elements();
    }
  return held;
}

}  // namespace

TEST_CASE("a matrix in nf4 has the nearest codes of scales that are the nearest ones of their groups") {
  const std::vector<double> dynamic = dynamic_values();
  const std::int64_t rows = 300, in = 130, blocks = 3;
  const std::vector<float> w = matrix(rows, in), got = rounded(Quantization::nf4, w, rows, in);
  const auto at = [&](std::int64_t r, std::int64_t i) {
    return static_cast<double>(w[static_cast<std::size_t>(r * in + i)]);
  };
  int wrong = 0;
  for (std::int64_t b = 0; b < blocks; ++b)
    for (std::int64_t first = 0; first < rows; first += 256) {
      const std::int64_t last = std::min(first + 256, rows), end = std::min(b * 64 + 64, in);
      std::vector<double> most;
      for (std::int64_t r = first; r < last; ++r) {
        most.push_back(0);
        for (std::int64_t i = b * 64; i < end; ++i) most.back() = std::max(most.back(), std::abs(at(r, i)));
      }
      double mean = 0, spread = 0;
      for (const double value : most) mean += value / static_cast<double>(most.size());
      for (const double value : most)
        if (std::abs(value - mean) > std::abs(spread)) spread = value - mean;
      for (std::int64_t r = first; r < last; ++r) {
        const double scale =
            mean + nearest(dynamic, (most[static_cast<std::size_t>(r - first)] - mean) / spread) * spread;
        for (std::int64_t i = b * 64; i < end; ++i) {
          // A tie may go either way, so what counts is how near the element is.
          const double best = std::abs(nearest(kNf4, at(r, i) / scale) * scale - at(r, i)),
                       off = std::abs(static_cast<double>(got[static_cast<std::size_t>(r * in + i)]) - at(r, i));
          wrong += !(std::abs(off - best) <= 1e-6 * std::abs(scale) + 1e-6 * mean);
        }
      }
    }
  CHECK(wrong == 0);
}

TEST_CASE("the codes of nf4 are the values of the paper's table") {
  // A single block, whose scale is then kept as it is.
  std::vector<float> w(64);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(kNf4[i % 16] * 3);
  const std::vector<float> got = rounded(Quantization::nf4, w, 1, 64);
  for (std::size_t i = 0; i < w.size(); ++i) CHECK(got[i] == w[i]);
}

TEST_CASE("a matrix in int8 is within half a step of 127 in each row, and zeros stay zeros") {
  const std::int64_t rows = 40, in = 70;
  std::vector<float> w = matrix(rows, in);
  std::fill_n(w.begin() + 3 * in, in, 0.0F);
  const std::vector<float> got = rounded(Quantization::int8, w, rows, in);
  int wrong = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    double most = 0;
    for (std::int64_t i = 0; i < in; ++i)
      most = std::max(most, std::abs(static_cast<double>(w[static_cast<std::size_t>(r * in + i)])));
    for (std::int64_t i = 0; i < in; ++i) {
      const auto k = static_cast<std::size_t>(r * in + i);
      wrong += !(std::abs(static_cast<double>(got[k]) - w[k]) <= most / 127 * (0.5 + 1e-4));
    }
  }
  CHECK(wrong == 0);
  const std::vector<float> zeros(static_cast<std::size_t>(300 * 70));
  for (const Quantization as : {Quantization::int8, Quantization::nf4}) CHECK(rounded(as, zeros, 300, 70) == zeros);
}

TEST_CASE(
    "quantized matrices take at most 0.56 bytes an element in nf4 and 1.07 in int8, and no other copy is planned") {
  const Quantized q;
  const std::int64_t elements = 2 * (4 + 8) * 64 * 64;  // c_attn, c_proj and the two of the MLP in two blocks
  for (const auto& [as, most] : {std::pair("nf4", 0.56), std::pair("int8", 1.07)})
    for (const char* compute : {"f32", "bf16"}) {
      CAPTURE(std::string(as));
      const CompiledJob job = compiled(q.load("run", as, {std::string("precision.compute=") + compute}));
      const Held held = held_by(job);
      CHECK(held.elements == elements);
      CHECK(static_cast<double>(held.bytes) <= most * static_cast<double>(elements));
      const CompiledJob plain = compiled(q.load("run", "none", {std::string("precision.compute=") + compute}));
      CHECK(plain.num_parameters == job.num_parameters);
      const std::int64_t width = std::string(compute) == "f32" ? 4 : 2;
      const auto parameters = [&](const CompiledJob& of) {
        std::int64_t bytes = 0;
        for (const Buffer& buffer : of.plan.roles[0].buffers)
          if (buffer.program < 0 && (buffer.category == Category::parameters || buffer.category == Category::workspace))
            bytes += buffer.bytes;
        return bytes;
      };
      CHECK(parameters(plain) - parameters(job) >= elements * width - held.bytes - 4096);
    }
}

TEST_CASE("an adapter beside quantized weights trains as beside the weights that they stand for") {
  const Quantized q;
  for (const Quantization as : {Quantization::int8, Quantization::nf4}) {
    CAPTURE(std::string(name_of(as)));
    const Overrides steps{"train.steps=20"};
    const Trained quantized = run(q.load("q", std::string(name_of(as)), steps));
    const Trained plain = run(q.load("p", "none", both(steps, {"model.init_from=" + q.rounded_base(as)})));
    check_losses(quantized.loss, plain.loss, 2e-6);
    CHECK(largest_difference(weights_of(quantized.report.checkpoint), weights_of(plain.report.checkpoint)) < 2e-5);
    const Trained exact = run(q.load("e", "none", steps));
    CHECK(std::abs(exact.loss.back() - quantized.loss.back()) > 1e-6);  // it did quantize
    std::filesystem::remove_all(q.jobs.path("q"));
    std::filesystem::remove_all(q.jobs.path("p"));
    std::filesystem::remove_all(q.jobs.path("e"));
  }
}

TEST_CASE("quantized weights train alike on one rank and on two, whole and in slices") {
  const Quantized q;
  for (const char* as : {"int8", "nf4"})
    for (const char* compute : {"f32", "bf16"}) {
      const Overrides base{std::string("precision.compute=") + compute};
      const bool f32 = std::string(compute) == "f32";
      const Trained one = run(q.load("one", as, base));
      for (const char* strategy :
           {"ddp", "{data: {kind: zero1}}", "{data: {kind: zero3}}", "fsdp", "{pipeline: {degree: 2}}"}) {
        CAPTURE(std::string(as));
        CAPTURE(std::string(strategy));
        CAPTURE(std::string(compute));
        std::filesystem::remove_all(q.jobs.path("two"));
        const Trained two = run(q.load(
            "two", as,
            both(base, {"cluster.devices_per_node=2", "strategy=" + std::string(strategy), "train.batch.micro=2"})));
        check_losses(two.loss, one.loss, f32 ? 1e-5 : 2e-2);
      }
      std::filesystem::remove_all(q.jobs.path("one"));
    }
}

TEST_CASE("quantized weights are cut over the tensor axis where that leaves whole groups") {
  const TinyJobs jobs;
  for (const auto& [as, dim] : {std::pair("int8", "128"), std::pair("nf4", "512")}) {
    CAPTURE(std::string(as));
    const Overrides model{std::string("model.with.dim=") + dim, "model.with.heads=4", "model.with.layers=1"};
    const std::string base =
        run(jobs.load("gpt2", std::string("base_") + as, both(model, {"train.steps=0"}))).report.checkpoint;
    const Overrides all = both(model, {"adapter={rank: 4, alpha: 8}", "model.init_from=" + base,
                                       std::string("model.quantize=") + as, "train.steps=3"});
    const Trained one = run(jobs.load("gpt2", std::string("one_") + as, all));
    for (const char* strategy : {"{tensor: 2}", "{tensor: {degree: 2, sequence_parallel: true}}"}) {
      std::filesystem::remove_all(jobs.path("two"));
      const Trained two =
          run(jobs.load("gpt2", "two", both(all, {"cluster.devices_per_node=2", std::string("strategy=") + strategy})));
      check_losses(two.loss, one.loss, 1e-5);
    }
  }
}

TEST_CASE("a merged adapter stands on the weights that it was trained beside") {
  const Quantized q;
  const Overrides val{"data.val={fraction: 0.2}", "eval.every=6", "eval.batches=1"};
  for (const char* as : {"int8", "nf4"}) {
    CAPTURE(std::string(as));
    const Trained trained = run(q.load(as, as, both(val, {"adapter.targets=[\"*c_attn\"]"})));
    exporting::Options options;
    options.checkpoint = trained.report.checkpoint;
    options.out = q.jobs.path(std::string("merged_") + as);
    options.configs_dir = configs_dir();
    options.merge = true;
    exporting::export_model(options);
    const LoadedJob plain = q.jobs.load("gpt2", "plain", both(kModel, val));
    const double loss =
        evaluate(plain, compiled(plain, Purpose::evaluate), options.out + "/model.safetensors", 0).val_loss;
    CHECK(loss == doctest::Approx(trained.evaluations.back().val_loss).epsilon(2e-6));
  }
}

TEST_CASE("an adapter beside quantized weights goes on, evaluates, and names the base as it is in the file") {
  const Quantized q;
  const Overrides more{"data.val={fraction: 0.2}", "eval.every=6", "eval.batches=1", "checkpoint.every=3"};
  const Trained whole = run(q.load("whole", "nf4", more));
  std::filesystem::create_directories(q.jobs.path("from"));
  std::filesystem::copy(q.jobs.path("whole/step-00000003"), q.jobs.path("from/step-00000003"));
  const Trained resumed = run(q.load("from", "nf4", more));
  CHECK(resumed.report.first_step == 3);
  CHECK(files_of(resumed.report.checkpoint) == files_of(whole.report.checkpoint));
  const LoadedJob loaded = q.load("whole", "nf4", more);
  CHECK(evaluate(loaded, compiled(loaded, Purpose::evaluate), whole.report.checkpoint, 0).val_loss ==
        doctest::Approx(whole.evaluations.back().val_loss).epsilon(1e-6));
  const Trained plain = run(q.load("plain", "none", {"train.steps=0"}));
  const auto base_of = [](const std::string& checkpoint) {
    return *facts_of(checkpoint::open_checkpoint(checkpoint).manifest, checkpoint).base;
  };
  CHECK(base_of(whole.report.checkpoint).hash == base_of(plain.report.checkpoint).hash);
  CHECK(base_of(whole.report.checkpoint).quantization == Quantization::nf4);
  CHECK(base_of(whole.report.checkpoint).quantized.size() == 8);
  CHECK(contains(message_of<JobError>([&] { run(q.load("whole", "int8", both(more, {"train.steps=9"}))); }),
                 "model.quantize: nf4 → int8"));
}

TEST_CASE("what cannot be quantized is told at the key") {
  const Quantized q;
  const auto refusal = [&](const Overrides& more) {
    return message_of<JobError>([&] { compiled(q.load("run", "nf4", more)); });
  };
  for (const auto& [change, why] : {std::pair("adapter.magnitude=true", "adapter.magnitude needs model.quantize: none"),
                                    std::pair("trainable=all", "no linear but the head has a frozen weight")}) {
    const std::string message = refusal({change});
    CHECK(contains(message, "model.quantize"));
    CHECK(contains(message, why));
  }
  const std::string parted = refusal({"cluster.devices_per_node=2", "strategy={tensor: 2}"});
  CHECK(contains(parted, "model.quantize"));
  CHECK(contains(parted, "needs multiples of 256"));
  CHECK(contains(message_of<JobError>([&] { q.jobs.load("gpt2", "run", {"model.quantize=int8"}); }), "or an adapter"));
}
