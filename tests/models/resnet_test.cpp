// ResNet folders: loss, logits and gradients of transformers in training and in evaluation, by the graph that the
// family makes of config.json (interpreted in f64); steps of training from tensors in a file against PyTorch's, running
// statistics among what is compared; the names in a folder.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/tensor_store.h"
#include "engine/compile/compile.h"
#include "engine/core/error.h"
#include "engine/job/yaml.h"
#include "engine/train/train.h"
#include "engine/transform/transform.h"
#include "kernels/cpu/table.h"
#include "tests/goldens/golden.h"
#include "tests/models/folder_jobs.h"
#include "tests/models/trained_folder.h"
#include "tests/reference/interpreter.h"
#include "tests/temporary.h"

namespace trainer::resnet_test {

using namespace trainer::test;
using reference::Tensor;
using Tensors = std::map<std::string, Tensor>;

namespace {

const std::vector<std::string> kFolders{"resnet", "resnet_basic", "resnet_early"};
const std::vector<std::string> kSize{"model.with.height=22", "model.with.width=18"};

/// The largest difference, over the largest element of what is expected, or `least` where that is larger.
double off(const Tensor& got, const Tensor& expected, double least = 1e-6) {
  REQUIRE(got.shape == expected.shape);
  double most = 0, scale = least;
  for (std::int64_t i = 0; i < expected.size(); ++i) {
    most = std::isnan(got[i]) ? INFINITY : std::max(most, std::abs(got[i] - expected[i]));
    scale = std::max(scale, std::abs(expected[i]));
  }
  return most / scale;
}

Tensors expected_of(const std::string& name) { return goldens::load_tensors(golden(name) + "/expected.safetensors"); }

bool is_statistic(const std::string& name) { return name.find(".running_") != std::string::npos; }

/// A graph of the folder with its values set, run forward and, where it has them, through its gradients.
struct Interpreted {
  Graph graph;
  std::optional<reference::Interpreter> values;

  Interpreted(const std::string& name, const Tensors& expected, BuildOptions::Mode mode) {
    const LoadedJob loaded = job_of(golden(name), kSize);
    const auto store = checkpoint::TensorStore::from_folder(golden(name), loaded.job.model.folder->names);
    BuildOptions options;
    options.batch = 6;
    options.field_shapes = {{"images", {3, 22, 18}}, {"targets", {}}};
    options.mode = mode;
    graph = read_graph(graph_tree(loaded), loaded.job.model.with, options);
    CHECK(graph.parameters.size() + graph.states.size() == store.tensors().size());
    if (mode == BuildOptions::Mode::train) differentiate(graph, DType::f32);
    values.emplace(graph);
    for (const ValueId input : graph.inputs) values->set(input, expected.at("input/" + graph.value(input).name));
    for (const Parameter& parameter : graph.parameters)
      values->set(parameter.value, read_tensor(store, graph.value(parameter.value).name));
    for (const GraphState& state : graph.states)
      values->set(state.value, read_tensor(store, graph.value(state.value).name));
    if (graph.seed != kNone) values->set(graph.seed, Tensor({1}, 1.0 / 6));
    values->run();
  }
  double loss() const { return values->get(graph.loss.sum)[0] / 6; }
};

void write_inputs(const std::string& path, const Tensors& expected) {
  const Tensor &images = expected.at("input/images"), &targets = expected.at("input/targets");
  checkpoint::SafetensorsWriter writer(
      path, {{"images", DType::f32, images.shape}, {"targets", DType::i32, targets.shape}}, {});
  const std::vector<float> floats(images.data.begin(), images.data.end());
  const std::vector<std::int32_t> ids(targets.data.begin(), targets.data.end());
  for (const checkpoint::TensorSpec& spec : writer.order())
    writer.write(spec.name, spec.dtype == DType::f32 ? static_cast<const void*>(floats.data()) : ids.data(),
                 spec.bytes());
  writer.finish();
}

class LossesOf final : public Monitor {
 public:
  explicit LossesOf(std::vector<double>& losses) : losses_(losses) {}
  void step(const StepRecord& record) override { losses_.push_back(record.loss); }

 private:
  std::vector<double>& losses_;
};

struct Trained {
  std::vector<double> losses;
  Tensors tensors;  ///< f32, of the last checkpoint
};

Trained trained(const std::string& name, std::vector<std::string> overrides) {
  const tests::TemporaryFolder folder;
  write_inputs(folder.path("train.safetensors"), expected_of(name));
  for (const std::string& text : std::vector<std::string>{
           "data.train=" + folder.path("train.safetensors"), "data.fields={images: images, targets: targets}",
           "data.shuffle=false", "train.batch.global=6", "train.lr_schedule={name: constant}", "train.clip_norm=null",
           "precision.compute=f32", "checkpoint.format=full", "checkpoint.dir=" + folder.path("run"), kSize[0],
           kSize[1]})
    overrides.push_back(text);
  const LoadedJob loaded = job_of(golden(name), overrides);
  Trained result;
  Monitors monitors;
  monitors.push_back(std::make_unique<LossesOf>(result.losses));
  result.tensors = trained_tensors(loaded, monitors);
  return result;
}

}  // namespace

TEST_CASE("the graph of a ResNet has transformers' loss, logits and gradients, in training and in evaluation") {
  for (const std::string& name : kFolders) {
    CAPTURE(name);
    const Tensors expected = expected_of(name);
    const Interpreted evaluated(name, expected, BuildOptions::Mode::evaluate);
    CHECK(evaluated.loss() == doctest::Approx(expected.at("eval_loss")[0]).epsilon(1e-6));
    CHECK(off(evaluated.values->get(evaluated.graph.logits), expected.at("eval_logits")) < 1e-6);

    const Interpreted in_training(name, expected, BuildOptions::Mode::train);
    CHECK(in_training.loss() == doctest::Approx(expected.at("loss")[0]).epsilon(1e-6));
    CHECK(off(in_training.values->get(in_training.graph.logits), expected.at("logits")) < 1e-6);
    for (const Parameter& parameter : in_training.graph.parameters) {
      const std::string& own = in_training.graph.value(parameter.value).name;
      CAPTURE(own);
      CHECK(off(parameter_gradient(in_training.graph, *in_training.values, parameter.value),
                expected.at("grad/" + own)) < 1e-5);
    }
  }
}

TEST_CASE("a step of a ResNet has transformers' loss, gradients and running statistics, on every strategy") {
  for (const std::string& name : kFolders) {
    const Tensors expected = expected_of(name);
    const ModelFolder folder = read_model_folder(golden(name), configs());
    const auto store = checkpoint::TensorStore::from_folder(golden(name), folder.names);
    for (const std::string strategy : {"", "ddp", "fsdp", "{pipeline: {degree: 2, schedule: gpipe}}"}) {
      if (strategy == "ddp" && name != "resnet") continue;
      CAPTURE(name);
      CAPTURE(strategy);
      std::vector<std::string> overrides{"train.steps=1", "train.optimizer={name: sgd, lr: 1}", "model.with.sync=1"};
      if (!strategy.empty()) overrides.insert(overrides.end(), {"cluster.devices_per_node=2", "strategy=" + strategy});
      overrides.push_back(strategy == "ddp" || strategy == "fsdp" ? "train.batch.micro=3" : "train.batch.micro=6");
      const Trained step = trained(name, overrides);
      CHECK(std::abs(step.losses.at(0) - expected.at("loss")[0]) < 2e-5);
      for (const checkpoint::TensorInfo& info : store.tensors()) {
        CAPTURE(info.name);
        REQUIRE(step.tensors.contains(info.name));
        if (is_statistic(info.name)) {
          CHECK(off(step.tensors.at(info.name), expected.at("after/" + info.name)) < 2e-6);
          continue;
        }
        Tensor update = read_tensor(store, info.name);
        for (std::int64_t i = 0; i < update.size(); ++i) update[i] -= step.tensors.at(info.name)[i];
        // The weights, of order 1, are rounded to f32 once more: 1e-6.
        CHECK(off(update, expected.at("grad/" + info.name), 1e-2) < 1e-4);
      }
    }
  }
}

// In f32, against f64: a rounding of 2^-24 in each of some 30 layers, grown over the steps.
TEST_CASE("20 steps of a ResNet are PyTorch's, running statistics included") {
  for (const std::string& name : kFolders) {
    CAPTURE(name);
    const Tensors expected = expected_of(name);
    const Trained steps = trained(name, {"train.steps=20", "train.optimizer={name: sgd, lr: 0.02, momentum: 0.9}"});
    for (std::size_t step = 0; step < 20; ++step)
      CHECK(std::abs(steps.losses.at(step) - expected.at("losses")[static_cast<std::int64_t>(step)]) < 2e-4);
    for (const auto& [key, want] : expected)
      if (key.starts_with("steps/")) {
        CAPTURE(key);
        CHECK(off(steps.tensors.at(key.substr(6)), want) < 1e-3);
      }
  }
}

TEST_CASE("what a ResNet's config.json says that cannot be done is told") {
  for (const auto& [from, to, said] :
       {std::tuple("\"hidden_act\": \"relu\"", "\"hidden_act\": \"silu\"", "relu"),
        std::tuple("\"layer_type\": \"basic\"", "\"layer_type\": \"plain\"", "bottleneck"),
        std::tuple("ResNetForImageClassification", "ResNetBackbone", "ResNetForImageClassification"),
        std::tuple("\"num_channels\": 3", "\"num_channels\": 3, \"stem_width\": 3", "does not know")}) {
    CAPTURE(to);
    tests::TemporaryFolder folder;
    std::string text = tests::contents_of(golden("resnet_basic") + "/config.json");
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    folder.write("m/config.json", text.replace(at, std::string(from).size(), to));
    std::filesystem::copy_file(golden("resnet_basic") + "/model.safetensors", folder.path("m/model.safetensors"));
    const std::vector<Diagnostic> mistakes = mistakes_of(folder.path("m"));
    REQUIRE(!mistakes.empty());
    CHECK_MESSAGE(mistakes.front().str().find(said) != std::string::npos, mistakes.front().str());
  }
}

// He et al., 2016, table 1; the counts are torchvision's documentation of its models for 1000 classes.
TEST_CASE("ResNets of the published depths have the published numbers of parameters") {
  const auto list = [](std::initializer_list<double> numbers) {
    ParamValue::List items;
    for (const double number : numbers) items.emplace_back(number);
    return ParamValue(std::move(items));
  };
  const yaml::Node file = yaml::read_file(configs() + "/models/resnet.yaml");
  BuildOptions options;
  options.any_fields = true;
  const auto count = [&](bool bottleneck, const ParamValue& depths) {
    Variables with{{"depths", depths}, {"bottleneck", ParamValue(bottleneck ? 1.0 : 0.0)}};
    if (!bottleneck) with["widths"] = list({64, 128, 256, 512});
    return read_graph(file, with, options).num_parameters();
  };
  CHECK(count(false, list({2, 2, 2, 2})) == 11'689'512);
  CHECK(count(false, list({3, 4, 6, 3})) == 21'797'672);
  CHECK(count(true, list({3, 4, 6, 3})) == 25'557'032);
  CHECK(count(true, list({3, 4, 23, 3})) == 44'549'160);
}

}  // namespace trainer::resnet_test
