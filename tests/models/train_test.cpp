// Whole models through the engine (plan, executor, kernels, loop) against 20 steps of PyTorch in f64: losses and
// gradient norms of every step, the validation loss and the weights at the end.
//
// f32: 2e-4 of each loss and norm, 1e-3 of the largest weight of a tensor. With bf16 compute 2% of each loss and norm.
#include "engine/train/train.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "kernels/cpu/table.h"
#include "tests/goldens/golden.h"
#include "tests/temporary.h"

using namespace trainer;
using reference::Tensor;

namespace {

struct History {
  std::vector<double> loss, grad_norm, lr;
  double val_loss = NAN;
};

class Recorder final : public Monitor {
 public:
  explicit Recorder(History& history) : history_(history) {}
  void step(const StepRecord& record) override {
    history_.loss.push_back(record.loss);
    history_.grad_norm.push_back(record.grad_norm);
    history_.lr.push_back(record.lr);
  }
  void evaluation(const EvaluationRecord& record) override { history_.val_loss = record.val_loss; }

 private:
  History& history_;
};

struct Run {
  History history;
  std::map<std::string, Tensor> weights;  ///< after the last step
};

Run train_case(const std::string& name, std::vector<std::string> overrides) {
  const tests::TemporaryFolder folder;
  overrides.push_back("checkpoint.dir=" + folder.path("run"));
  overrides.push_back("checkpoint.format=full");
  const LoadedJob loaded = load_job(goldens::folder() + "/" + name + "/job.yaml", overrides,
                                    {.configs_dir = goldens::folder() + "/../../configs"});
  const int ranks = world_size_of(loaded.job);
  const kernels::cpu::CpuTarget target({.isa = kernels::cpu::detect_isa(), .threads = threads_per_rank(ranks)});
  const Hardware hardware{.target = &target, .memory_bytes = std::int64_t{8} << 30, .threads = threads_per_rank(ranks)};
  const CompiledJob compiled = compile(loaded, hardware, Purpose::train);
  Run run;
  Monitors monitors;
  monitors.push_back(std::make_unique<Recorder>(run.history));
  const RunReport report = train(loaded, compiled, monitors, {});
  CHECK(report.steps == 20);
  CHECK(report.planned_peak_bytes == report.allocated_bytes);
  const auto saved = checkpoint::open_checkpoint(report.checkpoint);
  for (const checkpoint::TensorInfo& info : saved.tensors.tensors()) {
    if (info.dtype != DType::f32) continue;
    std::vector<float> values(static_cast<std::size_t>(info.shape.elements()));
    saved.tensors.read(info.name, 0, info.shape.elements(), values.data());
    Tensor tensor(info.shape);
    tensor.data.assign(values.begin(), values.end());
    run.weights[info.name] = std::move(tensor);
  }
  return run;
}

std::map<std::string, Tensor> expected(const std::string& name) {
  return goldens::load_tensors(goldens::folder() + "/" + name + "/expected.safetensors");
}

double relative(double got, double want) { return std::fabs(got - want) / std::fabs(want); }

void check_history(const History& got, const std::map<std::string, Tensor>& want, double tolerance) {
  REQUIRE(got.loss.size() == 20);
  for (std::size_t step = 0; step < 20; ++step) {
    CAPTURE(step);
    CHECK(relative(got.lr[step], want.at("lr").data[step]) < 1e-6);
    CHECK(relative(got.loss[step], want.at("loss").data[step]) < tolerance);
    CHECK(relative(got.grad_norm[step], want.at("grad_norm").data[step]) < tolerance);
  }
  CHECK(relative(got.val_loss, want.at("val_loss").data[0]) < tolerance);
}

void check_weights(const Run& run, const std::map<std::string, Tensor>& want) {
  std::size_t checked = 0;
  for (const auto& [key, tensor] : want) {
    if (!key.starts_with("final/")) continue;
    const std::string name = key.substr(6);
    CAPTURE(name);
    REQUIRE(run.weights.contains(name));
    const Tensor& got = run.weights.at(name);
    REQUIRE(got.shape == tensor.shape);
    double largest = 0, off = 0;
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      largest = std::fmax(largest, std::fabs(tensor[i]));
      off = std::isnan(got[i]) ? INFINITY : std::fmax(off, std::fabs(got[i] - tensor[i]));
    }
    CHECK(off < 1e-3 * largest);
    ++checked;
  }
  CHECK(checked > 5);
}

void check_case(const std::string& name) {
  const std::map<std::string, Tensor> want = expected(name);
  {
    const Run run = train_case(name, {});
    check_history(run.history, want, 2e-4);
    check_weights(run, want);
  }
  check_history(train_case(name, {"precision.compute=bf16"}).history, want, 2e-2);
}

}  // namespace

TEST_CASE("a GPT-2 trains as in PyTorch") { check_case("models/gpt2"); }

TEST_CASE("a Llama with grouped queries trains as in PyTorch") { check_case("models/llama"); }

TEST_CASE("rows of several documents train as in PyTorch with masks of blocks, positions learned and rotary") {
  check_case("models/gpt2_documents");
  check_case("models/decoder_documents");
}

TEST_CASE("a GPT-2 under Muon trains as with torch.optim.Muon") { check_case("models/gpt2_muon"); }

TEST_CASE("a Llama whose parameters have four optimizers trains as in PyTorch") { check_case("models/llama_groups"); }

TEST_CASE("an MLP with label smoothing, an ignored class and unequal micro-batches trains as in PyTorch") {
  check_case("models/mlp");
}

TEST_CASE("a convolutional network under lion trains as in PyTorch") { check_case("models/convnet"); }

TEST_CASE("BERT with its head for masked words trains as in transformers") { check_case("models/bert"); }

TEST_CASE("a ViT with a class token trains as in transformers") { check_case("models/vit"); }

TEST_CASE("LoRA with B away from zero trains as in peft, and its checkpoint holds the adapter only") {
  for (const char* name : {"gpt2_lora", "llama_rslora_qv", "llama_lora_and_norms", "gpt2_dora", "llama_dora"}) {
    CAPTURE(name);
    check_case(std::string("adapters/jobs/") + name);
    const Run run = train_case(std::string("adapters/jobs/") + name, {});
    for (const auto& [tensor, values] : run.weights)
      CHECK((tensor.find(".lora_") != std::string::npos ||
             (std::string(name) == "llama_lora_and_norms" && tensor.find("norm") != std::string::npos)));
  }
}

TEST_CASE(
    "a part of a model trains as in PyTorch with requires_grad = False for the others, which stay what they were") {
  for (const auto& [name, model] : {std::pair("gpt2_last_block", "gpt2"), std::pair("llama_norms_and_head", "llama")}) {
    CAPTURE(name);
    check_case(std::string("adapters/jobs/") + name);
    const std::map<std::string, Tensor> want = expected(std::string("adapters/jobs/") + name),
                                        init = goldens::load_tensors(goldens::folder() + "/models/" + model +
                                                                     "/init.safetensors");
    const Run run = train_case(std::string("adapters/jobs/") + name, {});
    int frozen = 0;
    for (const auto& [tensor, values] : init) {
      CAPTURE(tensor);
      REQUIRE(run.weights.contains(tensor));
      const bool trained = want.contains("final/" + tensor);
      CHECK((run.weights.at(tensor).data == values.data) == !trained);
      CHECK(run.weights.contains(tensor + ".exp_avg") == trained);
      frozen += !trained;
    }
    CHECK(frozen > 5);
  }
}

TEST_CASE("rows of an embedding train as in PyTorch with a hook that clears the gradient of the others") {
  struct Case {
    const char *name, *model, *table;
    std::int64_t first, last;
  };
  for (const auto& [name, model, table, first, last] :
       {Case{"gpt2_rows", "gpt2", "wte.weight", 40, 61},
        Case{"llama_rows", "llama", "model.embed_tokens.weight", 7, 31}}) {
    CAPTURE(name);
    check_case(std::string("adapters/jobs/") + name);
    const Tensor init = goldens::load_tensors(goldens::folder() + "/models/" + model + "/init.safetensors").at(table);
    const std::int64_t dim = init.shape[1];
    for (const std::vector<std::string>& strategy :
         {std::vector<std::string>{},
          {"checkpoint.format=sharded"},
          {"cluster.devices_per_node=2", "strategy=zero2", "train.batch.micro=1"},
          {"cluster.devices_per_node=2", "strategy=fsdp", "checkpoint.format=sharded", "train.batch.micro=1"},
          {"cluster.devices_per_node=2", "strategy={pipeline: {degree: 2}}"}}) {
      CAPTURE(strategy.size());
      const Run run = train_case(std::string("adapters/jobs/") + name, strategy);
      check_history(run.history, expected(std::string("adapters/jobs/") + name), 2e-4);
      const Tensor& got = run.weights.at(table);  // whole, whatever it was in the plan
      REQUIRE(got.shape == init.shape);
      for (std::int64_t row = 0; row < init.shape[0]; ++row) {
        bool moved = false;
        for (std::int64_t i = row * dim; i < (row + 1) * dim; ++i) moved = moved || got[i] != init[i];
        CHECK(moved == (row >= first && row < last));
      }
      for (const auto& [tensor, values] : run.weights)
        if (tensor.starts_with(table) && tensor.ends_with(".exp_avg")) CHECK(values.shape[0] == last - first);
    }
  }
  check_case("adapters/jobs/gpt2_lora_and_rows");
}

TEST_CASE("recomputation changes no loss of a GPT-2") {
  const std::map<std::string, Tensor> want = expected("models/gpt2");
  for (const char* mode : {"full", "selective", "every_n"}) {
    CAPTURE(mode);
    std::vector<std::string> overrides{std::string("activation_checkpointing.mode=") + mode};
    if (std::string(mode) == "every_n") overrides.push_back("activation_checkpointing.every=2");
    check_history(train_case("models/gpt2", overrides).history, want, 2e-4);
  }
}

TEST_CASE("ranks as threads train as one") {
  for (const auto& [name, ranks] : {std::pair("models/gpt2", 2), std::pair("models/llama", 4),
                                    std::pair("models/mlp", 2), std::pair("models/convnet", 4)}) {
    CAPTURE(name);
    const std::map<std::string, Tensor> want = expected(name);
    std::vector<std::string> overrides{"strategy=ddp", "cluster.devices_per_node=" + std::to_string(ranks),
                                       "train.batch.micro=1"};
    const Run run = train_case(name, overrides);
    check_history(run.history, want, 2e-4);
    check_weights(run, want);
  }
}
