// Words of other tools: each answer is a key, a value or an op that there is, and short forms mean what they stand for.
#include "engine/job/aliases.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "engine/core/op_record.h"
#include "engine/job/fields.h"
#include "engine/job/job.h"

namespace trainer::aliases_test {
namespace {

const std::string kModel = "model: {graph: m.yaml}\n", kData = "data: {format: text, train: a.txt}\n",
                  kTrain = "train: {steps: 100}\n";
const LoadOptions kNoFiles{.configs_dir = {}, .check_files = false};

LoadedJob parsed(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_job(text, "job.yaml", overrides, kNoFiles);
}

std::vector<Diagnostic> mistakes_of(const std::string& text) {
  try {
    parsed(text);
  } catch (const JobError& error) {
    return error.diagnostics();
  }
  return {};
}

/// Whether a job may have a key at `path`; "groups[].match" is one of an item of a list.
bool is_key(const std::vector<FieldDef>& fields, std::string_view path) {
  const std::string_view name = path.substr(0, path.find('.'));
  const bool item = name.ends_with("[]");
  for (const FieldDef& field : fields) {
    if (field.name != name.substr(0, name.size() - (item ? 2 : 0))) continue;
    if (name.size() == path.size()) return true;
    for (const Form& form : item ? field.forms.front().items : field.forms) {
      if (form.kind == Form::Kind::map) return true;
      if (form.kind == Form::Kind::section && is_key(form.fields, path.substr(name.size() + 1))) return true;
    }
  }
  return false;
}

/// Whether the key at `path` takes the word.
bool is_value(const std::vector<FieldDef>& fields, std::string_view path, std::string_view word) {
  const std::string_view name = path.substr(0, path.find('.'));
  for (const FieldDef& field : fields) {
    if (field.name != name) continue;
    for (const Form& form : field.forms) {
      if (name.size() == path.size() && form.kind == Form::Kind::word &&
          std::ranges::find(form.words, word) != form.words.end())
        return true;
      if (name.size() < path.size() && form.kind == Form::Kind::section &&
          is_value(form.fields, path.substr(name.size() + 1), word))
        return true;
    }
  }
  return false;
}

TEST_CASE("every word of other tools is answered with a key or a value that jobs have") {
  int num_words = 0;
  each_alias([&](AliasOf what, std::string_view path, std::string_view word, const Alias& alias) {
    CAPTURE(path);
    CAPTURE(word);
    ++num_words;
    CHECK((!alias.ours.empty() || !alias.why.empty()));
    if (what == AliasOf::op || alias.ours.empty()) return;
    if (what == AliasOf::key) CHECK(is_key(job_fields(), alias.ours));
    if (what == AliasOf::key && !path.empty() && path != "model.with")
      CHECK_FALSE(is_key(job_fields(), std::string(path) + "." + std::string(word)));
    if (what == AliasOf::value && path == "cluster.hardware")
      CHECK((alias.ours == "auto" || std::filesystem::exists(std::string(TRAINER_SOURCE_DIR) + "/configs/hardware/" +
                                                             std::string(alias.ours) + ".yaml")));
    else if (what == AliasOf::value)
      CHECK(is_value(job_fields(), path, alias.ours));
    if (what == AliasOf::value) CHECK_FALSE(is_value(job_fields(), path, word));
  });
  CHECK(num_words >= 400);
}

TEST_CASE("every op of other tools is answered with one that graph files have") {
  const auto is_op = [](std::string_view name) {
    const std::optional<Op> op = op_named(name);
    return op && has(*op, Trait::graph_file);
  };
  each_alias([&](AliasOf what, std::string_view, std::string_view word, const Alias& alias) {
    if (what != AliasOf::op) return;
    CAPTURE(word);
    CHECK_FALSE(is_op(word));
    if (!alias.ours.empty()) CHECK(is_op(alias.ours));
  });
}

TEST_CASE("a known word is answered with what it means, not with a name of similar letters") {
  struct Case {
    const char* text;
    const char* suggestion;
    const char* message;
  };
  const Case cases[] = {
      {"cluster: {device: gpu}", "cuda", "unknown name"},
      {"seed: 1\nstrategy: {data: {kind: zero}}", "zero1", "DeepSpeed's stages"},
      {"epochs: 3", "train.steps", "one epoch is"},
      {"learning_rate: 1.0e-3", "train.optimizer.lr", "unknown key"},
      {"batch_size: 8", "train.batch.global", "unknown key"},
      {"gpus: 8", "cluster.devices_per_node", "ranks of one machine"},
      {"gradient_checkpointing: true", "activation_checkpointing", "unknown key"},
      {"num_workers: 4", "", "loading has no settings"},
      {"lora: {r: 8}", "adapter", "LoRA beside model.init_from"},
      {"freeze: [wte]", "trainable", "the others are frozen"},
      {"data_parallel: 8", "strategy.data", "what they shard"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.text);
    const std::vector<Diagnostic> found = mistakes_of(kModel + kData + kTrain + one.text + "\n");
    REQUIRE(found.size() == 1);
    CHECK(found[0].suggestion == one.suggestion);
    CHECK(found[0].message.find(one.message) != std::string::npos);
  }
}

TEST_CASE("short forms stand for the one key that they can mean") {
  const Job job = parsed(
                      "model: m.yaml\n"
                      "data: {format: text, train: a.txt, val: 0.1}\n"
                      "train: {steps: 10, batch: 32, optimizer: lion, lr_schedule: linear}\n"
                      "eval: 5\nprecision: bf16\nactivation_checkpointing: full\n"
                      "strategy: {data: zero2, tensor: 2, pipeline: 2, wrap: transformer}\n"
                      "cluster: {devices_per_node: 8}\ncheckpoint: runs/x\n")
                      .job;
  CHECK(job.model.graph == "m.yaml");
  REQUIRE(std::holds_alternative<double>(job.data.val));
  CHECK(std::get<double>(job.data.val) == 0.1);
  CHECK(job.train.batch.global == 32);
  CHECK(job.train.optimizer.name == OptimizerName::lion);
  CHECK(job.train.optimizer.lr == 1e-4);
  CHECK(job.train.lr_schedule.name == ScheduleName::linear);
  REQUIRE(job.eval);
  CHECK(job.precision.compute == DType::bf16);
  CHECK(job.activation_checkpointing.mode == CheckpointingMode::full);
  CHECK(job.strategy.data.kind == DataKind::zero2);
  CHECK(job.strategy.tensor.degree == 2);
  CHECK(job.strategy.pipeline.degree == 2);
  CHECK(job.strategy.wrap.policy == WrapPolicy::transformer);
  CHECK(job.checkpoint.dir == "runs/x");
}

TEST_CASE("overrides and the effective job see the section that a short form stands for") {
  const std::string text = kModel + kData + kTrain + "precision: bf16\n";
  const LoadedJob loaded =
      parsed(text, {"precision.reduce=bf16", "train.optimizer=sgd", "train.optimizer.momentum=0.9"});
  CHECK(loaded.job.precision.compute == DType::bf16);
  CHECK(loaded.job.precision.reduce == DType::bf16);
  CHECK(loaded.job.train.optimizer.name == OptimizerName::sgd);
  CHECK(loaded.job.train.optimizer.momentum == 0.9);
  REQUIRE(loaded.setting("precision.compute") != nullptr);
  CHECK(loaded.setting("precision.compute")->origin("job.yaml") == "job.yaml:4");
  CHECK(effective_job(loaded).find("  compute: bf16") != std::string::npos);
  const LoadedJob again = parse_job(effective_job(loaded), "job.yaml", {}, kNoFiles);
  CHECK(effective_job(again).find("  compute: bf16") != std::string::npos);
}

TEST_CASE("groups take over what train.optimizer says of the same optimizer, and the effective job says it again") {
  const std::string text = kModel + kData + R"(train:
  steps: 10
  optimizer: {name: muon, lr: 0.03, momentum: 0.9, others: {name: sgd, momentum: 0.8}}
  groups:
    - {match: ["*.bias", "ln*"], optimizer: sgd}
    - {match: ["h.*"], optimizer: {name: muon, lr: 0.01}}
)";
  const LoadedJob loaded = parsed(text, {});
  const TrainJob& train = loaded.job.train;
  REQUIRE(train.groups.size() == 2);
  CHECK(train.groups[0].match == std::vector<std::string>{"*.bias", "ln*"});
  CHECK(train.groups[0].optimizer.name == OptimizerName::sgd);
  CHECK(train.groups[0].optimizer.momentum == 0);
  CHECK(train.groups[0].optimizer.lr == 0.01);
  CHECK(train.groups[1].optimizer.name == OptimizerName::muon);
  CHECK(train.groups[1].optimizer.lr == 0.01);
  CHECK(train.groups[1].optimizer.momentum == 0.9);
  REQUIRE(train.groups[1].optimizer.others.size() == 1);
  CHECK(train.groups[1].optimizer.others[0].momentum == 0.8);
  REQUIRE(loaded.setting("train.groups[1].optimizer.momentum") != nullptr);
  CHECK(loaded.setting("train.groups[1].optimizer.momentum")->origin("job.yaml") == "job.yaml:5");
  const LoadedJob again = parse_job(effective_job(loaded), "job.yaml", {}, kNoFiles);
  REQUIRE(again.settings.size() == loaded.settings.size());
  for (std::size_t i = 0; i < again.settings.size(); ++i) {
    CHECK(again.settings[i].path == loaded.settings[i].path);
    CHECK(again.settings[i].value == loaded.settings[i].value);
  }
}

TEST_CASE("a wrong short form is blamed at the key that it stands for") {
  const std::vector<Diagnostic> found = mistakes_of(kModel + kData + kTrain + "precision: bf17\n");
  REQUIRE(found.size() == 1);
  CHECK(found[0].path == "precision.compute");
  CHECK(found[0].line == 4);
  CHECK(found[0].column == 12);
  CHECK(found[0].suggestion == "bf16");
}

TEST_CASE("a number that is too large is told the bound that it passed") {
  const std::vector<Diagnostic> found = mistakes_of(kModel + kData + "train: {steps: 1e17, optimizer: {lr: 1.0e39}}\n");
  REQUIRE(found.size() == 2);
  CHECK(found[0].allowed.find("to 9") != std::string::npos);
  CHECK(found[1].allowed.find("to 3.4") != std::string::npos);
}

}  // namespace
}  // namespace trainer::aliases_test
