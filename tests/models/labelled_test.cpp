// Rows of a text and a label: BERT, Llama and GPT-2 with heads for whole texts train as transformers and PyTorch train
// them, on batches of texts of unequal lengths, on one rank and under strategies of two.
//
// Goldens are of f64. With AdamW's eps e and u the unit roundoff of f32, a gradient's error of some 100 u of its size
// moves a weight by at most lr/e times that in a step.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/models/trained_folder.h"
#include "tests/temporary.h"

namespace trainer::labelled_test {

using namespace trainer::test;
using reference::Tensor;
using tests::contains;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kModels{"bert_classes", "llama_classes", "gpt2_number"};

std::string labelled(const std::string& path) { return goldens::folder() + "/labelled/" + path; }

struct Told {
  std::vector<double> loss, norm;
  EvaluationRecord evaluation;
};

class Listener final : public Monitor {
 public:
  explicit Listener(Told& told) : told_(told) {}
  void step(const StepRecord& record) override {
    told_.loss.push_back(record.loss);
    told_.norm.push_back(record.grad_norm);
  }
  void evaluation(const EvaluationRecord& record) override { told_.evaluation = record; }

 private:
  Told& told_;
};

/// A model folder with the goldens' tokenizer, and a job on it.
class Folder : public tests::TemporaryFolder {
 public:
  explicit Folder(const std::string& model) {
    fs::copy(golden(model), path("m"));
    fs::copy_file(labelled("tokenizer.json"), path("m/tokenizer.json"));
  }
  LoadedJob load(const std::string& rows, std::vector<std::string> overrides = {}) const {
    for (const std::string& text : std::vector<std::string>{
             "data.format=labelled", "data.train=" + rows, "data.val=" + rows, "data.seq_len=16", "data.shuffle=false",
             "train.steps=20", "train.batch.global=4",
             "train.optimizer={name: adamw, lr: 1.0e-2, eps: 1.0e-3, weight_decay: 0.0}",
             "train.lr_schedule={name: constant}", "train.clip_norm=null", "precision.compute=f32", "eval.every=20",
             "checkpoint.dir=" + path("run"), "checkpoint.format=full", "model.with.dropout=0"})
      overrides.insert(overrides.begin(), text);
    return job_of(path("m"), overrides);
  }
};

/// What is said of a job that cannot run.
std::string message_of(const std::function<LoadedJob()>& load) {
  try {
    trained_tensors(load(), {});
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("heads for whole texts train as in PyTorch, whatever the lengths of the texts and the strategy") {
  for (const std::string& name : kModels) {
    CAPTURE(name);
    const nlohmann::json expected = nlohmann::json::parse(tests::contents_of(labelled(name + "/expected.json")));
    const auto weights = goldens::load_tensors(labelled(name + "/weights.safetensors"));
    for (const std::string strategy : {"", "ddp", "fsdp", "tensor"}) {
      CAPTURE(strategy);
      const Folder folder(name);
      std::vector<std::string> overrides;
      if (name.starts_with("bert")) overrides.push_back("model.with.head_dropout=0");
      if (name.starts_with("gpt2")) overrides.push_back("model.with.embed_dropout=0");
      if (!strategy.empty()) overrides.insert(overrides.end(), {"cluster.devices_per_node=2", "strategy=" + strategy});
      Told told;
      Monitors monitors;
      monitors.push_back(std::make_unique<Listener>(told));
      const auto got = trained_tensors(folder.load(labelled(name + "/rows.jsonl"), overrides), monitors);
      REQUIRE(told.loss.size() == 20);
      for (std::size_t step = 0; step < 20; ++step) {
        CAPTURE(step);
        CHECK(std::abs(told.loss[step] - expected["loss"][step].get<double>()) < 2e-4);
        const double norm = expected["grad_norm"][step];
        CHECK(std::abs(told.norm[step] - norm) < 1e-3 * (1 + norm));
      }
      CHECK(std::abs(told.evaluation.val_loss - expected["val_loss"].get<double>()) < 2e-4);
      CHECK(told.evaluation.val_accuracy.has_value() == expected.contains("val_accuracy"));
      if (expected.contains("val_accuracy"))
        CHECK(told.evaluation.val_accuracy.value() == doctest::Approx(expected["val_accuracy"].get<double>()));
      const ModelFolder family = read_model_folder(golden(name), configs());
      const auto before = checkpoint::TensorStore::from_folder(golden(name), family.names);
      const auto after =
          checkpoint::TensorStore::from_safetensors(labelled(name + "/weights.safetensors"), family.names);
      std::size_t moved = 0;
      for (const checkpoint::TensorInfo& info : before.tensors()) {
        CAPTURE(info.name);
        const Tensor want = read_tensor(after, info.name), start = read_tensor(before, info.name);
        double off = 0, change = 0;
        for (std::int64_t i = 0; i < want.size(); ++i) {
          off = std::max(off, std::abs(got.at(info.name)[i] - want[i]));
          change = std::max(change, std::abs(want[i] - start[i]));
        }
        CHECK(off < 1e-3);
        if (change > 1e-2) ++moved;
      }
      CHECK(moved > before.tensors().size() / 2);
    }
  }
}

TEST_CASE("an adapter is trained beside the head, as PEFT trains it for sequence classification") {
  const Folder folder("llama_classes");
  const std::string rows = labelled("llama_classes/rows.jsonl");
  Told told;
  Monitors monitors;
  monitors.push_back(std::make_unique<Listener>(told));
  const LoadedJob loaded = folder.load(rows, {"adapter={kind: lora, rank: 4, alpha: 8}", "train.steps=60"});
  const CompiledJob compiled = compiled_here(loaded, Purpose::train, 1);
  // A and B of seven linears in each of two layers: q and o 24 → 24, k and v 24 → 12, gate and up 24 → 40, down 40
  // → 24.
  const std::int64_t adapted = 2 * (2 * 4 * (24 + 24) + 2 * 4 * (24 + 12) + 3 * 4 * (24 + 40));
  CHECK(compiled.num_trained == adapted + 3 * 24);
  const auto saved = trained_tensors(loaded, monitors);
  CHECK(saved.contains("score.weight"));
  CHECK(!saved.contains("model.norm.weight"));
  CHECK(told.loss.back() < 0.3 * told.loss.front());
}

TEST_CASE("rows without a text or a label of the model are named with their places") {
  const Folder folder("llama_classes");
  const auto told = [&](const std::string& rows, std::vector<std::string> overrides = {}) {
    const std::string file = folder.write("rows.jsonl", rows);
    return message_of([&] { return folder.load(file, overrides); });
  };
  const std::string good = "{\"text\": \"ab\", \"label\": 1}\n";
  CHECK(
      contains(told(good + "{\"text\": \"ab\"}\n{\"label\": 1}\n"), "rows.jsonl:2: has no \"label\": it has \"text\""));
  CHECK(contains(told(good + "{\"text\": \"ab\"}\n{\"label\": 1}\n"), "rows.jsonl:3: has no \"text\""));
  CHECK(contains(told(good + "{\"text\": \"ab\", \"label\": 3}\n"),
                 "rows.jsonl:2: its label 3 is no class: the model has the classes 0 to 2"));
  CHECK(contains(told("{\"text\": \"ab\", \"label\": 0.5}\n"), "its label 0.5 is no class"));
  CHECK(contains(told("{\"text\": \"ab\", \"label\": \"good\"}\n"),
                 "its label \"good\" is no class: the classes are LABEL_0, LABEL_1, LABEL_2"));
  CHECK(
      contains(told("{\"text\": \"ab\", \"label\": null}\n"), "its label is neither a number nor the name of a class"));
  CHECK(contains(told("{\"text\": \"\", \"label\": 1}\n"), "its text is empty"));
  CHECK(contains(told(good + "{\"text\": \"abcdefghijklmnopq\", \"label\": 1}\n"),
                 "rows.jsonl:2: has 17 tokens, more than data.seq_len = 16"));
}

TEST_CASE("labelled rows need a head for whole texts, and such a head needs them") {
  const tests::TemporaryFolder folder;
  fs::copy(golden("llama3"), folder.path("m"));
  fs::copy_file(labelled("tokenizer.json"), folder.path("m/tokenizer.json"));
  const std::string rows = labelled("llama_classes/rows.jsonl");
  const std::string words = message_of([&] {
    return job_of(folder.path("m"), {"data.format=labelled", "data.train=" + rows, "data.seq_len=16"});
  });
  CHECK(contains(words, "data.format"));
  CHECK(contains(words, "it needs a head for whole texts"));
  const Folder classes("llama_classes");
  const std::string text =
      message_of([&] { return job_of(classes.path("m"), {"data={format: text, train: " + rows + ", seq_len: 8}"}); });
  CHECK(contains(text, "the graph takes samples of shape"));
}

}  // namespace trainer::labelled_test
