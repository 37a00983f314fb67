// Mixtral, Qwen 3 with experts and DeepSeek V3 train as transformers and PyTorch train them, and DeepSeek V3 once more
// with the bias of its routers moved, by a formula in PyTorch (tests/goldens/expert_goldens.py), and with a layer that
// predicts a further token (tests/goldens/mtp_goldens.py): losses, norms and weights of 20 steps, on one rank and under
// strategies of two.
//
// Goldens are of f64, and leave every choice of experts clear by 1e-5, some hundred roundings of a score in f32. With
// AdamW's eps e and u the unit roundoff of f32, a gradient's error of some 100 u of its size moves a weight by at most
// lr/e times that in a step; lr/e is 3.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/models/trained_folder.h"
#include "tests/temporary.h"

namespace trainer::expert_training_test {

using namespace trainer::test;
using reference::Tensor;

namespace {

std::string expert_golden(const std::string& file) { return goldens::folder() + "/experts/" + file; }

struct Told {
  std::vector<double> loss, norm, further;
};

class Listener final : public Monitor {
 public:
  explicit Listener(Told& told) : told_(told) {}
  void step(const StepRecord& record) override {
    told_.loss.push_back(record.loss);
    told_.norm.push_back(record.grad_norm);
    for (const auto& [figure, value] : record.figures)
      if (figure == "mtp_loss") told_.further.push_back(value);
  }

 private:
  Told& told_;
};

LoadedJob job_on(const std::string& folder, const std::string& name, const std::string& run,
                 const std::vector<std::string>& more) {
  std::vector<std::string> overrides{"data.format=tokens",
                                     "data.token_type=u16",
                                     "data.train=" + expert_golden(name + ".bin"),
                                     "data.seq_len=8",
                                     "data.shuffle=false",
                                     "train.steps=20",
                                     "train.batch.global=4",
                                     "train.optimizer={name: adamw, lr: 3.0e-3, eps: 1.0e-3, weight_decay: 0.0}",
                                     "train.lr_schedule={name: constant}",
                                     "train.clip_norm=null",
                                     "precision.compute=f32",
                                     "checkpoint.format=full",
                                     "checkpoint.dir=" + run};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return job_of(golden(folder), overrides);
}

}  // namespace

TEST_CASE("models with experts train as in PyTorch, and their biases as its formula moves them") {
  for (const std::string name : {"mixtral", "qwen3_moe", "deepseek_v3", "deepseek_v3_balanced", "deepseek_v3_mtp"}) {
    CAPTURE(name);
    const bool further = name == "deepseek_v3_mtp";
    const std::string folder = name == "deepseek_v3_balanced" ? "deepseek_v3" : name;
    const nlohmann::json expected = nlohmann::json::parse(tests::contents_of(expert_golden(name + ".json")));
    REQUIRE(expected["closest"].get<double>() > 1e-5);
    const ModelFolder family =
        read_model_folder(golden(folder), configs(), further ? Variables{{"mtp", ParamValue(1.0)}} : Variables());
    const auto before = checkpoint::TensorStore::from_folder(golden(folder), family.names),
               after = checkpoint::TensorStore::from_safetensors(expert_golden(name + ".safetensors"), family.names);
    for (const std::vector<std::string>& strategy : std::vector<std::vector<std::string>>{
             {},
             {"train.batch.micro=1"},
             {"cluster.devices_per_node=2", "strategy=ddp"},
             {"cluster.devices_per_node=2", "strategy=fsdp", "train.batch.micro=1"},
             {"cluster.devices_per_node=2", "strategy=tensor"},
             {"cluster.devices_per_node=2", "strategy={pipeline: {degree: 2, schedule: 1f1b}}", "train.batch.micro=2"},
             {"cluster.devices_per_node=2", "strategy={context: {degree: 2}}"},
             {"cluster.devices_per_node=2", "strategy={expert: {degree: 2}}"},
         }) {
      if (name == "mixtral" && !strategy.empty() && strategy.back().find("expert:") != std::string::npos)
        continue;  // 5
      CAPTURE(strategy.empty() ? std::string("one rank") : strategy.back());
      std::vector<std::string> overrides = strategy;
      if (further) overrides.push_back("model.with.mtp=true");
      if (folder.starts_with("deepseek"))
        overrides.push_back("model.with.balance_rate=" + std::to_string(expected["balance_rate"].get<double>()));
      const tests::TemporaryFolder out;
      Told told;
      Monitors monitors;
      monitors.push_back(std::make_unique<Listener>(told));
      const auto got = trained_tensors(job_on(folder, name, out.path("run"), overrides), monitors);
      REQUIRE(told.loss.size() == 20);
      for (std::size_t step = 0; step < 20; ++step) {
        CAPTURE(step);
        CHECK(std::abs(told.loss[step] - expected["loss"][step].get<double>()) < 2e-5);
        const double norm = expected["grad_norm"][step];
        CHECK(std::abs(told.norm[step] - norm) < 1e-4 * norm);
        if (further) CHECK(std::abs(told.further.at(step) - expected["mtp_loss"][step].get<double>()) < 2e-5);
      }
      std::size_t moved = 0;
      for (const checkpoint::TensorInfo& info : before.tensors()) {
        CAPTURE(info.name);
        const Tensor want = read_tensor(after, info.name), start = read_tensor(before, info.name);
        double off = 0, change = 0;
        for (std::int64_t i = 0; i < want.size(); ++i) {
          off = std::max(off, std::abs(got.at(info.name)[i] - want[i]));
          change = std::max(change, std::abs(want[i] - start[i]));
        }
        const bool bias = info.name.ends_with("e_score_correction_bias");
        CHECK(off < (bias ? 1e-6 : 1e-4));  // a bias is a sum of 20 roundings of steps of 0.01
        if (bias) CHECK((change > 0.009) == (expected["balance_rate"] > 0));
        if (change > 1e-3) ++moved;
      }
      CHECK(moved > before.tensors().size() / 2);
    }
  }
}

TEST_CASE(
    "a further layer that is asked for and is not in the files is missed by name; one that the config lacks, too") {
  const tests::TemporaryFolder out;
  const std::vector<std::string> asks{"model.with.mtp=true"};
  const std::string missed = tests::message_of<DataError>(
      [&] { trained_tensors(job_on("deepseek_v3", "deepseek_v3", out.path("run"), asks), {}); });
  CHECK(missed.find("model.layers.3.eh_proj.weight") != std::string::npos);
  const std::string refused = tests::message_of<JobError>([&] { job_of(golden("deepseek_v3_plain"), asks); });
  CHECK(refused.find("model.with.mtp asks for a layer that this model does not have") != std::string::npos);
}

}  // namespace trainer::expert_training_test
