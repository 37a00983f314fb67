// Sections `train` and `eval`: steps, batches, optimizers, the learning rate; evaluation.
#include "engine/job/sections/sections.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/job/sections/define.h"
#include "engine/job/values.h"

namespace trainer {
namespace {

using namespace form;

constexpr double kMostSamples = 1e9;  // no real job reaches it

Fields optimizer(std::vector<std::string_view> names) {
  const Form betas = list(between(0, 1, false, true), 2, 2);
  const Form rate = between(0, kMostF32, true, false);
  const std::string_view lr = "Peak learning rate.", moments = "Decay rates of the moments.";
  const std::string_view weight_decay = "Decoupled: a step takes lr * weight_decay of a weight.";
  const std::string_view states =
      "How its states are kept, in 4, 2 or 1.02 bytes each: bf16 is rounded stochastically, int8 has a scale for each "
      "block of 256.";
  const std::string_view adjust =
      "Factor of an update: original, the root of max(1, rows / columns); or match_rms_adamw, with which the lr of "
      "AdamW fits.";
  const std::string_view others = "The optimizer of what muon does not update: all but the matrices of blocks.";
  const bool muon = std::ranges::find(names, "muon") != names.end();
  Fields fields{
      optional("name", "The optimizer.", {word(std::move(names))}, "adamw"),
      optional("lr", lr, {rate}, "1.0e-3").when("name", {"adam", "adamw"}),
      optional("lr", lr, {rate}, "1.0e-4").when("name", {"lion"}),
      optional("lr", lr, {rate}, "1.0e-2").when("name", {"sgd"}),
      optional("betas", moments, {betas}, "[0.9, 0.999]").when("name", {"adam", "adamw"}),
      optional("betas", moments, {betas}, "[0.9, 0.99]").when("name", {"lion"}),
      optional("eps", "Added to the root of the second moment.", {positive()}, "1.0e-8")
          .when("name", {"adam", "adamw"}),
      optional("momentum", "Decay rate of sgd's velocity (0: none), of muon's average of gradients.",
               {between(0, 1, false, true)}, "0.0")
          .when("name", {"sgd"}),
      optional("nesterov", "Nesterov's momentum.", {flag()}, "false").when("name", {"sgd"}),
      optional("weight_decay", weight_decay, {number(0)}, "0.1")
          .when("name", muon ? Names{"adamw", "muon"} : Names{"adamw"}),
      optional("weight_decay", weight_decay, {number(0)}, "0.0").when("name", {"adam", "lion", "sgd"}),
      optional("decay", "matrices: weight decay applies to parameters of two or more dims. all: to every one.",
               {word(words<Decay>())}, "matrices")
          .when("name", {"adam", "adamw", "lion", "sgd"}),
      optional("states", states, {word(words<States>())}, "f32")
          .when("name", muon ? Names{"adam", "adamw", "lion", "muon"} : Names{"adam", "adamw", "lion"}),
      optional("states", states, {word(words<States>())}, "f32").when("name", {"sgd"}).when_above("momentum", 0),
  };
  if (!muon) return fields;
  const Fields more{
      optional("lr", lr, {rate}, "2.0e-2").when("name", {"muon"}),
      optional("momentum", "Decay rate of sgd's velocity (0: none), of muon's average of gradients.",
               {between(0, 1, true, true)}, "0.95")
          .when("name", {"muon"}),
      optional("nesterov", "Nesterov's momentum.", {flag()}, "true").when("name", {"muon"}),
      optional("ns_steps", "Steps of the Newton-Schulz iteration.", {integer(1, 100)}, "5").when("name", {"muon"}),
      optional("adjust", adjust, {word(words<MuonAdjust>())}, "original").when("name", {"muon"}),
      part("others", others, optimizer(without(words<OptimizerName>(), "muon")), "name").when("name", {"muon"}),
  };
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

Fields optimizer() { return optimizer(words<OptimizerName>()); }

Fields group() {
  const std::string_view doc =
      "Their optimizer. What it leaves out is as in train.optimizer, where that has the same name.";
  Fields fields = optimizer();
  fields.front().absent = FieldDef::Absent::required;  // its name
  return {required("match", "Globs over names of parameters.", {list(text(), 1)}),
          required("optimizer", doc, {section(std::move(fields), "name")})};
}

Fields lr_schedule() {
  return {
      optional("name", "The learning rate after warm-up; wsd: constant, then linear over decay_steps.",
               {word(words<ScheduleName>())}, "cosine"),
      optional("warmup_steps", "Steps of linear rise to lr.", {integer(0)}, "0"),
      optional("min_lr", "Where the learning rate ends.", {number(0)}, "0.0").when("name", {"linear", "cosine", "wsd"}),
      required("decay_steps", "Length of the fall at the end.", {integer(1)}).when("name", {"wsd"}),
  };
}

Fields batch() {
  return {
      optional("global", "Samples of a step, over all ranks; pairs under dpo.", {integer(1, kMostSamples)}, "64"),
      optional("micro", "Samples of a micro-batch of one data rank; auto: as fits.",
               {word({"auto"}), integer(1, kMostSamples)}, "auto"),
  };
}

Fields objective() {
  return {
      optional("kind",
               "auto: the loss of the graph. dpo: direct preference optimization of pairs (Rafailov et al. 2023), with "
               "the model as it starts, without its adapter, for the reference.",
               {word(words<ObjectiveKind>())}, "auto"),
      optional("beta", "How far the model may move from the reference: rewards are beta times the log-ratio of both.",
               {positive()}, "0.1")
          .when("kind", {"dpo"}),
  };
}

Fields generate() {
  return {
      required("file", "Rows with `prompt` and `answer`: JSONL (plain, .gz or .zst) or Parquet.", {text()}),
      optional("max_tokens", "Tokens of an answer at most.", {integer(1)}, "64"),
  };
}

OptimizerJob bind_optimizer(const Values& v, const std::string& section) {
  const std::string at = section + ".";
  OptimizerJob optimizer;
  optimizer.name = v.word<OptimizerName>(at + "name");
  optimizer.lr = v.number(at + "lr");
  if (v.has(at + "betas")) {
    const std::vector<yaml::Node>& betas = v.node(at + "betas").items;
    optimizer.betas = {Values::number_of(betas[0]), Values::number_of(betas[1])};
  }
  if (v.has(at + "eps")) optimizer.eps = v.number(at + "eps");
  if (v.has(at + "momentum")) optimizer.momentum = v.number(at + "momentum");
  if (v.has(at + "nesterov")) optimizer.nesterov = v.flag(at + "nesterov");
  optimizer.weight_decay = v.number(at + "weight_decay");
  if (v.has(at + "decay")) optimizer.decay = v.word<Decay>(at + "decay");
  if (v.has(at + "states")) optimizer.states = v.word<States>(at + "states");
  if (v.has(at + "ns_steps")) optimizer.ns_steps = v.integer(at + "ns_steps");
  if (v.has(at + "adjust")) optimizer.adjust = v.word<MuonAdjust>(at + "adjust");
  if (v.is_section(at + "others")) optimizer.others = {bind_optimizer(v, at + "others")};
  return optimizer;
}

std::vector<GroupJob> bind_groups(const Values& v) {
  std::vector<GroupJob> groups;
  for (std::string at = "train.groups[0]"; v.is_section(at); at = fmt::format("train.groups[{}]", groups.size()))
    groups.push_back({v.texts(at + ".match"), bind_optimizer(v, at + ".optimizer")});
  return groups;
}

LrScheduleJob bind_lr_schedule(const Values& v) {
  const std::string at = "train.lr_schedule.";
  LrScheduleJob schedule;
  schedule.name = v.word<ScheduleName>(at + "name");
  schedule.warmup_steps = v.integer(at + "warmup_steps");
  if (v.has(at + "min_lr")) schedule.min_lr = v.number(at + "min_lr");
  if (v.has(at + "decay_steps")) schedule.decay_steps = v.integer(at + "decay_steps");
  return schedule;
}

}  // namespace

Fields train_fields() {
  return {
      required("steps", "Optimizer steps; 0 writes the initial weights.", {integer(0)}),
      part("objective", "What is made smaller.", objective(), "kind"),
      part("batch", "Sizes of batches, in samples.", batch(), "global"),
      part("optimizer", "The optimizer and its numbers.", optimizer(), "name"),
      optional("groups",
               "Parameters with an optimizer of their own: a parameter takes the first group that matches it, else "
               "train.optimizer.",
               {list(section(group()), 0)}, "[]"),
      part("lr_schedule", "The learning rate over the steps.", lr_schedule(), "name"),
      optional("clip_norm", "Largest global norm of the gradients; null: no clipping.", {null(), positive()}, "1.0"),
      optional("on_nan",
               "At a loss or gradient that is not finite: stop and save nothing; skip the update; or rollback to the "
               "last good checkpoint, "
               "leaving out the batches since, at most three times.",
               {word(words<OnNan>())}, "stop"),
  };
}

TrainJob bind_train(const Values& v) {
  TrainJob train;
  train.steps = v.integer("train.steps");
  train.objective.kind = v.word<ObjectiveKind>("train.objective.kind");
  if (v.has("train.objective.beta")) train.objective.beta = v.number("train.objective.beta");
  train.batch = {v.integer("train.batch.global"), v.integer_or_nothing("train.batch.micro")};
  train.optimizer = bind_optimizer(v, "train.optimizer");
  train.groups = bind_groups(v);
  train.lr_schedule = bind_lr_schedule(v);
  const bool clips = !v.node("train.clip_norm").is_null();
  train.clip_norm = clips ? std::optional(v.number("train.clip_norm")) : std::nullopt;
  train.on_nan = v.word<OnNan>("train.on_nan");
  return train;
}

Fields eval_fields() {
  return {
      optional("every", "Steps from one evaluation to the next; null: no evaluation.", {null(), integer(1)}, "250"),
      optional("batches", "Global batches of one evaluation.", {integer(1)}, "20").when("every"),
      extra("generate",
            "Prompts that each evaluation answers by greedy generation; exact_match is the share it gets right.",
            {section(generate(), "file")})
          .when("every"),
  };
}

EvalJob bind_eval(Values& v) {
  EvalJob eval{v.integer("eval.every"), v.integer("eval.batches")};
  if (v.is_section("eval.generate"))
    eval.generate = {*v.file("eval.generate.file"), v.integer("eval.generate.max_tokens")};
  return eval;
}

}  // namespace trainer
