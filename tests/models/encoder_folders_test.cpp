// Model folders of encoders, of models for images and of speech: loss, logits and gradients of transformers, by the
// graph that the family makes of config.json (interpreted in f64), and by a step of training on every strategy from
// tensors in a file; both generations of config.json; what is wrong with such folders.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/tensor_store.h"
#include "engine/compile/compile.h"
#include "engine/core/error.h"
#include "engine/train/train.h"
#include "engine/transform/transform.h"
#include "kernels/cpu/table.h"
#include "tests/goldens/golden.h"
#include "tests/models/folder_jobs.h"
#include "tests/models/trained_folder.h"
#include "tests/reference/interpreter.h"
#include "tests/temporary.h"

namespace trainer::encoder_folders_test {

using namespace trainer::test;
using reference::Tensor;
namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;

namespace {

const std::vector<std::string> kFamilies{"bert_words",  "bert_classes", "bert_number", "llama_classes",
                                         "gpt2_number", "vit",          "whisper"};

/// The golden's tensors whose names begin with `prefix`, without it.
Tensors part_of(const Tensors& tensors, const std::string& prefix) {
  Tensors part;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(prefix)) part[name.substr(prefix.size())] = tensor;
  return part;
}

/// The largest difference, and the largest element of what is expected.
struct Off {
  double most = 0, scale = 0;
};
Off off(const Tensor& got, const Tensor& expected) {
  REQUIRE(got.shape == expected.shape);
  Off result;
  for (std::int64_t i = 0; i < expected.size(); ++i) {
    result.most = std::isnan(got[i]) ? INFINITY : std::max(result.most, std::abs(got[i] - expected[i]));
    result.scale = std::max(result.scale, std::abs(expected[i]));
  }
  return result;
}

}  // namespace

TEST_CASE("the graph of every family of encoders has transformers' loss, logits and gradients") {
  for (const std::string& name : kFamilies) {
    CAPTURE(name);
    const Tensors expected = goldens::load_tensors(golden(name) + "/expected.safetensors");
    const Tensors inputs = part_of(expected, "input/"), gradients = part_of(expected, "grad/");
    const LoadedJob loaded = job_of(golden(name));
    const auto store = checkpoint::TensorStore::from_folder(golden(name), loaded.job.model.folder->names);
    BuildOptions options;
    for (const auto& [input, tensor] : inputs) {
      options.batch = tensor.shape[0];
      options.field_shapes[input] = Shape(tensor.shape.sizes().subspan(1));
    }
    options.mode = BuildOptions::Mode::evaluate;  // without dropout
    Graph graph = read_graph(graph_tree(loaded), loaded.job.model.with, options);
    CHECK(graph.parameters.size() == store.tensors().size());
    CHECK(graph.inputs.size() == inputs.size());
    differentiate(graph, DType::f32);

    reference::Interpreter values(graph);
    for (const ValueId input : graph.inputs) values.set(input, inputs.at(graph.value(input).name));
    for (const Parameter& parameter : graph.parameters)
      values.set(parameter.value, read_tensor(store, graph.value(parameter.value).name));
    const Tensor& targets = inputs.at("targets");
    const auto counted = static_cast<double>(
        std::count_if(targets.data.begin(), targets.data.end(), [](double target) { return target != -100; }));
    values.set(graph.seed, Tensor({1}, 1 / counted));
    values.run();

    CHECK(values.get(graph.loss.sum)[0] / counted == doctest::Approx(expected.at("loss")[0]).epsilon(1e-6));
    const Off logits = off(values.get(graph.logits), expected.at("logits"));
    CHECK(logits.most <= 1e-6 * logits.scale);
    std::size_t trained = 0;
    for (const Parameter& parameter : graph.parameters) {
      const std::string& own = graph.value(parameter.value).name;
      CAPTURE(own);
      CHECK(parameter.trainable == gradients.contains(own));
      if (!parameter.trainable) continue;
      ++trained;
      const Off gradient = off(parameter_gradient(graph, values, parameter.value), gradients.at(own));
      CHECK(gradient.most <= 1e-5 * gradient.scale + 1e-9);
    }
    CHECK(trained == gradients.size());
  }
}

namespace {

/// Writes the golden's inputs as a file of data.
void write_inputs(const std::string& path, const Tensors& inputs) {
  std::vector<checkpoint::TensorSpec> specs;
  for (const auto& [name, tensor] : inputs) {
    const bool numbers =
        name == "targets" && std::ranges::any_of(tensor.data, [](double value) { return value != std::floor(value); });
    specs.push_back({name, name == "features" || name == "images" || numbers ? DType::f32 : DType::i32, tensor.shape});
  }
  checkpoint::SafetensorsWriter writer(path, specs, {});
  for (const checkpoint::TensorSpec& spec : writer.order()) {
    const Tensor& tensor = inputs.at(spec.name);
    const std::vector<float> floats(tensor.data.begin(), tensor.data.end());
    const std::vector<std::int32_t> ids(tensor.data.begin(), tensor.data.end());
    writer.write(spec.name, spec.dtype == DType::f32 ? static_cast<const void*>(floats.data()) : ids.data(),
                 spec.bytes());
  }
  writer.finish();
}

class LossOf final : public Monitor {
 public:
  explicit LossOf(double& loss) : loss_(loss) {}
  void step(const StepRecord& record) override { loss_ = record.loss; }

 private:
  double& loss_;
};

struct Trained {
  double loss = NAN;
  Tensors weights;  ///< after a step of gradient descent at rate 1
};

Trained one_step(const std::string& name, const Tensors& inputs, std::vector<std::string> overrides) {
  const tests::TemporaryFolder folder;
  write_inputs(folder.path("train.safetensors"), inputs);
  std::string fields;
  for (const auto& [input, tensor] : inputs) fields += (fields.empty() ? "" : ", ") + input + ": " + input;
  const std::int64_t rows = inputs.at("targets").shape[0];
  for (const std::string& text : std::vector<std::string>{
           "data.format=tensors", "data.train=" + folder.path("train.safetensors"), "data.fields={" + fields + "}",
           "data.shuffle=false", "train.steps=1", "train.batch.global=" + std::to_string(rows),
           "train.optimizer={name: sgd, lr: 1}", "train.lr_schedule={name: constant}", "train.clip_norm=null",
           "precision.compute=f32", "checkpoint.format=full", "checkpoint.dir=" + folder.path("run"),
           "model.with.dropout=0"})
    overrides.push_back(text);
  if (inputs.contains("tokens")) overrides.push_back("data.seq_len=" + std::to_string(inputs.at("tokens").shape[1]));
  if (name.starts_with("bert")) overrides.push_back("model.with.head_dropout=0");
  if (name.starts_with("gpt2")) overrides.push_back("model.with.embed_dropout=0");
  const LoadedJob loaded = job_of(golden(name), overrides);
  Trained step;
  Monitors monitors;
  monitors.push_back(std::make_unique<LossOf>(step.loss));
  step.weights = trained_tensors(loaded, monitors);
  return step;
}

}  // namespace

TEST_CASE("a step of every family of encoders on tensors has transformers' loss and gradients, on every strategy") {
  for (const std::string& name : kFamilies) {
    CAPTURE(name);
    const Tensors expected = goldens::load_tensors(golden(name) + "/expected.safetensors");
    const Tensors inputs = part_of(expected, "input/"), gradients = part_of(expected, "grad/");
    const ModelFolder folder = read_model_folder(golden(name), configs());
    const auto store = checkpoint::TensorStore::from_folder(golden(name), folder.names);
    for (const std::string strategy : {"", "tensor", "fsdp", "pipeline"}) {
      CAPTURE(strategy);
      std::vector<std::string> overrides;
      if (!strategy.empty()) overrides = {"cluster.devices_per_node=2", "strategy=" + strategy};
      const Trained step = one_step(name, inputs, overrides);
      CHECK(std::abs(step.loss - expected.at("loss")[0]) < 2e-5);
      for (const checkpoint::TensorInfo& info : store.tensors()) {
        CAPTURE(info.name);
        REQUIRE(step.weights.contains(info.name));
        Tensor update = read_tensor(store, info.name);
        for (std::int64_t i = 0; i < update.size(); ++i)
          update.data[static_cast<std::size_t>(i)] -= step.weights.at(info.name)[i];
        if (!gradients.contains(info.name)) {
          CHECK(std::all_of(update.data.begin(), update.data.end(), [](double value) { return value == 0; }));
          continue;
        }
        // The weights, of some units, are rounded to f32 once more.
        const Off gradient = off(update, gradients.at(info.name));
        CHECK(gradient.most <= 1e-4 * gradient.scale + 1e-6);
      }
    }
  }
}

TEST_CASE("config.json of both generations is the same encoder") {
  for (const std::string& name : kFamilies) {
    CAPTURE(name);
    tests::TemporaryFolder folder;
    fs::create_directories(folder.path("v4"));
    fs::copy_file(golden(name) + "/config_v4.json", folder.path("v4/config.json"));
    const ModelFolder v5 = read_model_folder(golden(name), configs()),
                      v4 = read_model_folder(folder.path("v4"), configs());
    CHECK(v4.with == v5.with);
    CHECK(v4.dtype == v5.dtype);
    CHECK(v4.longest == v5.longest);
  }
}

TEST_CASE("random weights of a Whisper have the sinusoids that transformers draws") {
  const tests::TemporaryFolder folder;
  const auto store = checkpoint::TensorStore::from_folder(golden("whisper"), DiskNames());
  const Tensors inputs = part_of(goldens::load_tensors(golden("whisper") + "/expected.safetensors"), "input/");
  const std::string positions = "model.encoder.embed_positions.weight";
  for (const std::string strategy : {"", "tensor", "fsdp"}) {
    std::vector<std::string> overrides{"model.weights=random"};
    if (!strategy.empty()) overrides.insert(overrides.end(), {"cluster.devices_per_node=2", "strategy=" + strategy});
    const Trained step = one_step("whisper", inputs, overrides);
    CHECK(off(step.weights.at(positions), read_tensor(store, positions)).most < 1e-6);  // theirs are computed in f32
  }
}

TEST_CASE("what reads more than tokens, or sees those that it is to predict, cannot be scored") {
  for (const auto& [name, said] : {std::pair("bert_words", "scoring needs a causal model"),
                                   std::pair("llama_classes", "scoring needs a model of words"),
                                   std::pair("gpt2_number", "scoring needs a model whose loss is a cross_entropy"),
                                   std::pair("vit", "scoring needs a model of tokens alone"),
                                   std::pair("whisper", "scoring needs a model of tokens alone")}) {
    const LoadedJob loaded = job_of(golden(name));
    BuildOptions options;
    options.any_fields = true;
    options.seq = 9;
    options.mode = BuildOptions::Mode::score;
    std::string found;
    try {
      read_graph(graph_tree(loaded), loaded.job.model.with, options);
    } catch (const JobError& error) {
      found = error.what();
    }
    CHECK_MESSAGE(found.find(said) != std::string::npos, found);
  }
}

TEST_CASE("tensors of older files have the names of today, and those of another head are left out") {
  const tests::TemporaryFolder folder;
  const ModelFolder model = read_model_folder(golden("bert_words"), configs());
  const auto plain = checkpoint::TensorStore::from_folder(golden("bert_words"), model.names);
  const checkpoint::SafetensorsFile file(golden("bert_words") + "/model.safetensors");
  std::vector<checkpoint::TensorSpec> specs{{"cls.seq_relationship.weight", DType::f32, {2, 24}},
                                            {"bert.pooler.dense.bias", DType::f32, {24}}};
  std::map<std::string, std::string> written;  // names of today by older ones
  for (const checkpoint::TensorEntry& entry : file.tensors()) {
    std::string name = entry.name;
    if (name.ends_with("LayerNorm.weight")) name.replace(name.size() - 6, 6, "gamma");
    if (name.ends_with("LayerNorm.bias")) name.replace(name.size() - 4, 4, "beta");
    written[name] = entry.name;
    specs.push_back({name, DType::f32, Shape(entry.shape)});
  }
  checkpoint::SafetensorsWriter writer(folder.path("model.safetensors"), specs, {});
  const std::vector<float> zeros(48);
  for (const checkpoint::TensorSpec& spec : writer.order()) {
    const bool own = written.contains(spec.name);
    writer.write(spec.name,
                 own ? static_cast<const void*>(file.bytes(*file.find(written.at(spec.name))).data()) : zeros.data(),
                 spec.bytes());
  }
  writer.finish();
  const auto older = checkpoint::TensorStore::from_folder(folder.path(), model.names);
  REQUIRE(older.tensors().size() == plain.tensors().size());
  for (const checkpoint::TensorInfo& info : plain.tensors())
    CHECK(read_tensor(older, info.name).data == read_tensor(plain, info.name).data);
}

namespace {

struct BadConfig {
  std::string family, from, to, path, said;
};

const std::vector<BadConfig> kBadConfigs{
    {"bert_words", "BertForMaskedLM", "BertModel", "architectures", "BertForSequenceClassification"},
    {"bert_words", "\"is_decoder\": false", "\"is_decoder\": true", "is_decoder", "false"},
    {"bert_words", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", "tie_word_embeddings", "true"},
    {"bert_words", "\"hidden_act\": \"gelu_new\"", "\"hidden_act\": \"silu\"", "hidden_act", "gelu_new"},
    {"bert_words", "\"use_cache\": true", "\"position_embedding_type\": \"relative_key\"", "position_embedding_type",
     "absolute"},
    {"bert_words", "\"use_cache\": true", "\"rms_norm_eps\": 1e-6", "rms_norm_eps", "does not know"},
    {"bert_classes", "\"problem_type\": \"single_label_classification\"", "\"problem_type\": \"regression\"",
     "problem_type", "a regression has one label"},
    {"bert_classes", "\"problem_type\": \"single_label_classification\"",
     "\"problem_type\": \"multi_label_classification\"", "problem_type", "single_label_classification"},
    {"llama_classes", "\"problem_type\": \"single_label_classification\"", "\"problem_type\": \"regression\"",
     "problem_type", "a regression has one label"},
    {"gpt2_number", "\"problem_type\": \"regression\"", "\"problem_type\": \"multi_label_classification\"",
     "problem_type", "single_label_classification"},
    {"vit", "\"patch_size\": 5", "\"patch_size\": 4", "image_size", "no multiple"},
    {"vit", "\"image_size\": 15", "\"image_size\": [15, 15]", "image_size", "an integer"},
    {"vit", "ViTForImageClassification", "ViTForMaskedImageModeling", "architectures", "ViTForImageClassification"},
    {"whisper", "\"apply_spec_augment\": false", "\"apply_spec_augment\": true", "apply_spec_augment", "false"},
    {"whisper", "\"use_cache\": true", "\"num_hidden_layers\": 3", "num_hidden_layers", "encoder_layers"},
};

}  // namespace

TEST_CASE("a mistake in an encoder's config.json is told with its key and what is allowed") {
  for (const BadConfig& bad : kBadConfigs) {
    CAPTURE(bad.family);
    CAPTURE(bad.to);
    tests::TemporaryFolder folder;
    std::string text = tests::contents_of(golden(bad.family) + "/config.json");
    const std::size_t at = text.find(bad.from);
    REQUIRE_MESSAGE(at != std::string::npos, bad.from);
    folder.write("m/config.json", text.replace(at, bad.from.size(), bad.to));
    fs::copy_file(golden(bad.family) + "/model.safetensors", folder.path("m/model.safetensors"));
    const std::vector<Diagnostic> found = mistakes_of(folder.path("m"));
    REQUIRE(!found.empty());
    CHECK(found[0].file == folder.path("m/config.json"));
    CHECK(found[0].line > 1);
    CHECK(found[0].path == bad.path);
    CHECK_MESSAGE((found[0].message + found[0].allowed).find(bad.said) != std::string::npos, found[0].str());
  }
}

}  // namespace trainer::encoder_folders_test
