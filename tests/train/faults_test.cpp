// What is not finite stops a run before the update and is named; weights from elsewhere fit or are refused, name by
// name.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "engine/checkpoint/safetensors.h"
#include "engine/core/error.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

Overrides ranks(int number) {
  return {"cluster.devices_per_node=" + std::to_string(number), "strategy.data.kind=ddp",
          "strategy.data.bucket_mb=0.004"};
}

const std::map<std::string, Shape> kMlp{{"stem.weight", {32, 6}},         {"stem.bias", {32}},
                                        {"layers.0.fc.weight", {32, 32}}, {"layers.0.fc.bias", {32}},
                                        {"layers.1.fc.weight", {32, 32}}, {"layers.1.fc.bias", {32}},
                                        {"head.weight", {4, 32}},         {"head.bias", {4}}};

// Eighths from -2 to 2: the same in every dtype.
float value_at(std::int64_t i) { return static_cast<float>(i * 7 % 33 - 16) / 8; }

std::string bytes_of(DType dtype, float value) {
  const auto raw = [](auto word) { return std::string(reinterpret_cast<const char*>(&word), sizeof word); };
  switch (dtype) {
    case DType::f64:
      return raw(static_cast<double>(value));
    case DType::f16:
      return raw(static_cast<_Float16>(value));
    case DType::bf16:
      return raw(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
    default:
      return raw(value);
  }
}

void write_weights(const std::string& path, const std::map<std::string, Shape>& shapes, DType dtype,
                   const std::string& broken = "") {
  std::vector<checkpoint::TensorSpec> specs;
  for (const auto& [name, shape] : shapes) specs.push_back({name, dtype, shape});
  checkpoint::SafetensorsWriter writer(path, specs, {});
  for (const checkpoint::TensorSpec& spec : writer.order()) {
    std::string bytes;
    for (std::int64_t i = 0; i < spec.shape.elements(); ++i)
      bytes += bytes_of(dtype, spec.name == broken && i == 5 ? std::numeric_limits<float>::quiet_NaN() : value_at(i));
    writer.write(spec.name, bytes.data(), static_cast<std::int64_t>(bytes.size()));
  }
  writer.finish();
}

}  // namespace

TEST_CASE("a learning rate that is far too large ends in an error that names step and node, before the update") {
  // The first update makes weights of 1e20; the second layer multiplies two such.
  const Overrides wild{"train.optimizer.lr=1.0e20", "train.lr_schedule.name=constant",
                       "train.lr_schedule.warmup_steps=0", "train.optimizer.weight_decay=0"};
  for (int number : {1, 2}) {
    CAPTURE(number);
    const TinyJobs jobs;
    const std::string message =
        message_of<NonFiniteError>([&] { run(jobs.load("mlp", "run", both(wild, ranks(number)))); });
    CHECK(contains(message, "step 1: loss "));
    CHECK(contains(message, "the first tensor that is not finite is layers.0.fc"));
    CHECK(contains(message, "written by layers.0.fc in micro-batch 0"));
    CHECK(contains(message, "the update was not made"));
    CHECK(contains(message, "nothing was saved"));
    CHECK(names_in(jobs.path("run")).empty());
  }
}

TEST_CASE("a weight that is no number is found where it is first used") {
  const TinyJobs jobs;
  write_weights(jobs.path("nan.safetensors"), kMlp, DType::f32, "layers.1.fc.weight");
  for (int number : {1, 2}) {
    CAPTURE(number);
    const std::string folder = "run" + std::to_string(number);
    const std::string message = message_of<NonFiniteError>([&] {
      run(jobs.load("mlp", folder, both(ranks(number), {"model.init_from=" + jobs.path("nan.safetensors")})));
    });
    CHECK(contains(message, "step 0: loss "));
    CHECK(contains(message, "written by layers.1.fc in micro-batch 0 of rank 0"));
    CHECK(names_in(jobs.path(folder)).empty());
  }
}

TEST_CASE("what only one rank's samples make infinite is named on that rank") {
  const TinyJobs jobs;
  std::string table;
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 6; ++column) table += row % 8 == 6 ? "3.0e38," : "0.5,";
    table += std::to_string(row % 4) + "\n";
  }
  jobs.write("large.csv", table);
  const Overrides large{"data.train=" + jobs.path("large.csv"), "data.normalize=none", "data.shuffle=false"};
  const std::string message = message_of<NonFiniteError>([&] { run(jobs.load("mlp", "run", both(large, ranks(4)))); });
  CHECK(contains(message, "written by stem in micro-batch 0 of rank 3"));
}

TEST_CASE("weights that do not fit are listed, every one") {
  const TinyJobs jobs;
  std::map<std::string, Shape> shapes = kMlp;
  shapes.erase("stem.bias");
  shapes.erase("head.weight");
  shapes["layers.0.fc.weight"] = {32, 31};
  shapes["tail.weight"] = {3};
  shapes["tail.bias"] = {1};
  write_weights(jobs.path("other.safetensors"), shapes, DType::f32);
  for (int number : {1, 2}) {
    const std::string message = message_of<DataError>([&] {
      run(jobs.load("mlp", "run", both(ranks(number), {"model.init_from=" + jobs.path("other.safetensors")})));
    });
    CHECK(contains(message, "other.safetensors does not fit the model"));
    for (const char* line : {"stem.bias [32] is missing", "head.weight [4, 32] is missing",
                             "layers.0.fc.weight is [32, 31], the model has [32, 32]",
                             "tail.weight [3] is not in the model", "tail.bias [1] is not in the model"}) {
      CAPTURE(std::string(line));
      CHECK(contains(message, line));
    }
    CHECK(!contains(message, "layers.1.fc"));
  }
}

TEST_CASE("weights of every float dtype are taken, converted") {
  const TinyJobs jobs;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const std::string name(name_of(dtype));
    CAPTURE(name);
    write_weights(jobs.path(name + ".safetensors"), kMlp, dtype);
    const Trained trained =
        run(jobs.load("mlp", "run-" + name, {"train.steps=0", "model.init_from=" + jobs.path(name + ".safetensors")}));
    const Tensors saved = weights_of(trained.report.checkpoint);
    REQUIRE(saved.size() == kMlp.size());
    for (const auto& [tensor, values] : saved)
      for (std::size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == value_at(static_cast<std::int64_t>(i)));
  }
}
