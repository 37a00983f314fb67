// Checkpoints of adapters: what they hold, that they are of one base, and that going on, evaluating and sampling take
// that base or say that it is another. And what a plan holds and computes for frozen parameters: nothing but the
// parameters themselves. (That they train as in PyTorch and peft is models/train_test.cpp's, that all strategies train
// them as one rank does equivalence_test.cpp's.)
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/checkpoint/checkpoint.h"
#include "engine/core/error.h"
#include "engine/ops/op_def.h"
#include "engine/train/check_files.h"
#include "engine/train/saved_facts.h"
#include "tests/train/mixed_jobs.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

// A base of gpt2.yaml in `base`, and jobs with an adapter of rank 3 beside it.
class Adapters {
 public:
  Adapters() { base_ = run(jobs.load("gpt2", "base", {"train.steps=0", "seed=5"})).report.checkpoint; }

  Overrides keys(const Overrides& more = {}) const {
    return both({"adapter={rank: 3, alpha: 6}", "model.init_from=" + base_}, more);
  }
  LoadedJob load(const std::string& folder, const Overrides& more = {}) const {
    return jobs.load("gpt2", folder, keys(more));
  }
  const std::string& base() const { return base_; }
  /// Drawn by another seed.
  std::string other_base(const std::string& folder) const {
    return run(jobs.load("gpt2", folder, {"train.steps=0", "seed=6"})).report.checkpoint;
  }
  /// A copy.
  std::string moved_base(const std::string& folder) const {
    std::filesystem::copy(base_, jobs.path(folder), std::filesystem::copy_options::recursive);
    return jobs.path(folder);
  }

  const TinyJobs jobs;

 private:
  std::string base_;
};

SavedFacts facts(const std::string& checkpoint) {
  return facts_of(checkpoint::open_checkpoint(checkpoint).manifest, checkpoint);
}

bool is_of_adapter(const std::string& name) {
  return contains(name, ".lora_A.weight") || contains(name, ".lora_B.weight");
}

double evaluated(const LoadedJob& loaded, const std::string& checkpoint) {
  return evaluate(loaded, compiled(loaded, Purpose::evaluate), checkpoint, 0).val_loss;
}

}  // namespace

TEST_CASE("a run of no steps writes the initial adapter, and names its base by a hash") {
  const Adapters adapters;
  const std::string checkpoint = run(adapters.load("run", {"train.steps=0"})).report.checkpoint;
  const Tensors tensors = tensors_of(checkpoint);
  int weights = 0;
  for (const auto& [name, values] : tensors) {
    CAPTURE(name);
    CHECK(is_of_adapter(name));
    if (!name.ends_with(".weight")) continue;  // a state
    ++weights;
    const bool b = name.ends_with(".lora_B.weight");
    const float bound = contains(name, "mlp.c_proj") ? 1.0F / 8 : 1.0F / 4;  // 1 / sqrt(in)
    for (float value : values) CHECK((b ? value == 0 : value != 0 && std::abs(value) <= bound));
  }
  CHECK(weights == 2 * 4 * 2);  // of four linears in each of two blocks; the head is none
  REQUIRE(facts(checkpoint).base);
  CHECK(facts(checkpoint).base->from == adapters.base());
  CHECK(facts(checkpoint).base->hash.size() == 32);
  CHECK(std::ranges::none_of(facts(checkpoint).base->tensors, is_of_adapter));
  // The same base elsewhere has the same hash, on whatever ranks; another one has another.
  const std::string moved = adapters.moved_base("moved"), other = adapters.other_base("other");
  CHECK(facts(run(adapters.load("run_2", {"train.steps=0", "model.init_from=" + moved, "cluster.devices_per_node=2",
                                          "strategy=fsdp"}))
                  .report.checkpoint)
            .base->hash == facts(checkpoint).base->hash);
  CHECK(
      facts(run(adapters.load("run_3", {"train.steps=0", "model.init_from=" + other})).report.checkpoint).base->hash !=
      facts(checkpoint).base->hash);
}

TEST_CASE("magnitudes begin as the norms of the rows of the base, on any ranks, and then change nothing") {
  const Adapters adapters;
  const Tensors base = weights_of(adapters.base());
  const Overrides val{"data.val={fraction: 0.2}", "eval.every=6", "eval.batches=1"};
  const double plain = evaluated(adapters.jobs.load("gpt2", "base", val), adapters.base());
  for (const char* strategy : {"ddp", "fsdp", "{tensor: 2}"}) {
    CAPTURE(std::string(strategy));
    const bool alone = std::string(strategy) == "ddp";
    const LoadedJob loaded =
        adapters.load(std::string("run_") + strategy[1],
                      both(val, {"train.steps=0", "adapter.magnitude=true", "strategy=" + std::string(strategy),
                                 alone ? "cluster.devices_per_node=1" : "cluster.devices_per_node=2"}));
    const std::string checkpoint = run(loaded).report.checkpoint;
    const std::string suffix = ".lora_magnitude_vector";
    int vectors = 0;
    for (const auto& [name, values] : tensors_of(checkpoint)) {
      if (!name.ends_with(suffix)) continue;
      CAPTURE(name);
      ++vectors;
      const std::vector<float>& weight = base.at(name.substr(0, name.size() - suffix.size()) + ".weight");
      const std::size_t columns = weight.size() / values.size();
      double off = 0;
      for (std::size_t i = 0; i < weight.size(); i += columns) {
        double squares = 0;
        for (std::size_t k = 0; k < columns; ++k) squares += static_cast<double>(weight[i + k]) * weight[i + k];
        off = std::max(off, std::abs(values[i / columns] / std::sqrt(squares) - 1));
      }
      CHECK(off < 2 * kRoundoffF32);
    }
    CHECK(vectors == 2 * 4);
    if (alone) CHECK(evaluated(loaded, checkpoint) == doctest::Approx(plain).epsilon(1e-6));
  }
}

TEST_CASE("an adapter that is stopped and resumed ends with the bits of one that was not") {
  for (const char* kind : {"full", "sharded"})
    for (const char* compute : {"f32", "bf16"}) {
      CAPTURE(std::string(kind));
      CAPTURE(std::string(compute));
      const Adapters adapters;
      const bool sharded = std::string(kind) == "sharded";
      const Overrides more{std::string("checkpoint.format=") + kind, std::string("precision.compute=") + compute,
                           "adapter.dropout=0.1", std::string("strategy=") + (sharded ? "fsdp" : "ddp"),
                           sharded ? "cluster.devices_per_node=2" : "cluster.devices_per_node=1"};
      const Trained whole = run(adapters.load("whole", more));
      const Trained first =
          run(adapters.load("parts", both(more, {"train.steps=3", "train.lr_schedule.warmup_steps=2"})));
      const Trained second = run(adapters.load("parts", more));
      CHECK(second.report.first_step == 3);
      // The schedule of the first part is shorter: run it whole where it is not.
      const Trained every = run(adapters.load("every", both(more, {"checkpoint.every=3"})));
      std::filesystem::create_directories(adapters.jobs.path("from"));
      std::filesystem::copy(adapters.jobs.path("every/step-00000003"), adapters.jobs.path("from/step-00000003"));
      const Trained resumed = run(adapters.load("from", more));
      CHECK(resumed.report.first_step == 3);
      CHECK(resumed.loss == std::vector<double>(whole.loss.begin() + 3, whole.loss.end()));
      CHECK(files_of(resumed.report.checkpoint) == files_of(whole.report.checkpoint));
      CHECK(files_of(every.report.checkpoint) == files_of(whole.report.checkpoint));
    }
}

TEST_CASE("an adapter goes on over other ranks, cut and sharded in other ways, as it would have before") {
  const Adapters adapters;
  const Overrides more{"train.steps=8", "checkpoint.every=4", "checkpoint.format=sharded",
                       "cluster.devices_per_node=2"};
  const Trained whole = run(adapters.load("whole", both(more, {"strategy=fsdp"})));
  for (const char* strategy : {"ddp", "{data: {kind: zero1}}", "{tensor: {degree: 2, sequence_parallel: true}}",
                               "{pipeline: {degree: 2}}", "{data: {kind: fsdp}, tensor: {degree: 2}}"})
    for (const char* ranks : {"2", "4"}) {
      CAPTURE(std::string(strategy));
      CAPTURE(std::string(ranks));
      std::filesystem::remove_all(adapters.jobs.path("from"));
      std::filesystem::create_directories(adapters.jobs.path("from"));
      std::filesystem::copy(adapters.jobs.path("whole/step-00000004"), adapters.jobs.path("from/step-00000004"));
      const Overrides other{std::string("strategy=") + strategy, std::string("cluster.devices_per_node=") + ranks,
                            "train.batch.micro=1"};
      const Trained resumed = run(adapters.load("from", both(more, other)));
      CHECK(resumed.report.first_step == 4);
      REQUIRE(resumed.loss.size() == 4);
      for (std::size_t i = 0; i < 4; ++i) CHECK(resumed.loss[i] == doctest::Approx(whole.loss[i + 4]).epsilon(1e-5));
      CHECK(largest_difference(weights_of(resumed.report.checkpoint), weights_of(whole.report.checkpoint)) < 1e-5);
    }
}

TEST_CASE("going on takes the base from where it is now, and refuses another one") {
  const Adapters adapters;
  run(adapters.load("run", {"train.steps=3"}));
  const std::string moved = adapters.moved_base("moved"), other = adapters.other_base("other");
  const std::string refusal = message_of<JobError>([&] { run(adapters.load("run", {"model.init_from=" + other})); });
  CHECK(contains(refusal, "model.init_from"));
  CHECK(contains(refusal, facts(adapters.jobs.path("run/step-00000003")).base->hash));
  CHECK(names_in(adapters.jobs.path("run")) == std::vector<std::string>{"step-00000003"});
  const Trained resumed = run(adapters.load("run", {"model.init_from=" + moved}));
  CHECK(resumed.report.first_step == 3);
  CHECK(resumed.report.steps == 6);
}

TEST_CASE("an adapter, its rank and what is trained may not change between a stop and going on") {
  const Adapters adapters;
  run(adapters.load("run", {"train.steps=3"}));
  for (const auto& [change, path] :
       {std::pair("adapter.rank=4", "adapter.rank: 3 → 4"), std::pair("adapter.alpha=7", "adapter.alpha: 6 → 7"),
        std::pair("trainable=[\"*ln_f*\"]", "trainable: adapter → "),
        std::pair("adapter.targets=[\"*c_fc\"]", "adapter.targets: ")}) {
    CAPTURE(std::string(change));
    CHECK(contains(message_of<JobError>([&] { run(adapters.load("run", {change})); }), path));
  }
  run(adapters.jobs.load("gpt2", "plain", {"train.steps=3"}));
  CHECK(contains(message_of<JobError>([&] { run(adapters.jobs.load("gpt2", "plain", {"trainable=[\"*ln_f*\"]"})); }),
                 "trainable: all → "));
  // An adapter that comes or goes is one difference; the base of one that comes is another.
  const auto refused = [](const std::string& message) {
    int count = 0;
    for (std::size_t at = 0; (at = message.find("cannot go on", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const std::string added = message_of<JobError>([&] { run(adapters.load("plain")); });
  CHECK(contains(added, "adapter: null → {kind: lora, rank: 3, alpha: 6"));
  CHECK(contains(added, "model.init_from: null → "));
  CHECK(refused(added) == 2);
  const std::string removed = message_of<JobError>([&] { run(adapters.jobs.load("gpt2", "run")); });
  CHECK(contains(removed, "adapter: {kind: lora, rank: 3, alpha: 6"));
  CHECK(refused(removed) == 1);
  // A new run may begin with this adapter where that fits, and never with it as a model.
  const std::string from = "adapter.from: " + adapters.jobs.path("run/step-00000003");
  const auto advice = [&](const std::string& change) {
    const std::string message = message_of<JobError>([&] { run(adapters.load("run", {change})); });
    CHECK_FALSE(contains(message, "model.init_from: " + adapters.jobs.path("run")));
    return message;
  };
  CHECK(contains(advice("adapter.alpha=7"), from));
  CHECK(contains(advice("trainable=[\"*ln_f*\"]"), from));
  CHECK_FALSE(contains(advice("adapter.rank=4"), from));
  CHECK_FALSE(contains(removed, from));
  CHECK(contains(removed, "another checkpoint.dir, which starts a new run"));
}

TEST_CASE("a checkpoint of an adapter is no model to start from") {
  const Adapters adapters;
  const std::string checkpoint = run(adapters.load("run", {"train.steps=0"})).report.checkpoint;
  const std::string expected = checkpoint + " is a checkpoint of an adapter; its base was " + adapters.base();
  const LoadedJob plain = adapters.jobs.load("gpt2", "plain", {"model.init_from=" + checkpoint});
  CHECK(contains(message_of<DataError>([&] { run(plain); }), expected));
  CHECK(
      contains(message_of<DataError>([&] { run(adapters.load("two", {"model.init_from=" + checkpoint})); }), expected));
  CHECK(
      contains(message_of<DataError>([&] { run(adapters.load("run", {"model.init_from=" + checkpoint})); }), expected));
  const FileProblems problems = check_files(plain, compiled(plain));
  REQUIRE(problems.diagnostics.size() == 1);
  CHECK(problems.diagnostics.front().path == "model.init_from");
  CHECK(contains(problems.diagnostics.front().message, checkpoint + " is a checkpoint of an adapter; its base was "));
}

TEST_CASE("an evaluation has the loss that the run had, of the adapter beside its base only") {
  const Adapters adapters;
  const Overrides more{"data.val={fraction: 0.2}", "eval.every=6", "eval.batches=1", "train.optimizer.lr=0.1"};
  const LoadedJob loaded = adapters.load("run", more);
  const Trained trained = run(loaded);
  const std::string checkpoint = trained.report.checkpoint;
  REQUIRE(trained.evaluations.size() == 1);
  const double loss = trained.evaluations.front().val_loss;
  CHECK(evaluated(loaded, checkpoint) == doctest::Approx(loss).epsilon(1e-6));
  // Without the adapter's part it is another loss.
  const LoadedJob plain = adapters.jobs.load("gpt2", "run", more);
  CHECK(std::fabs(evaluated(plain, adapters.base()) - loss) > 1e-3);
  // As `--base` says it.
  LoadedJob elsewhere = loaded;
  elsewhere.job.model.init_from = adapters.moved_base("moved");
  CHECK(evaluated(elsewhere, checkpoint) == evaluated(loaded, checkpoint));
  elsewhere.job.model.init_from = adapters.jobs.path("nowhere");
  CHECK(contains(message_of<DataError>([&] { evaluated(elsewhere, checkpoint); }), "nowhere: the base of the adapter"));
  elsewhere.job.model.init_from = adapters.other_base("other");
  const std::string another = message_of<DataError>([&] { evaluated(elsewhere, checkpoint); });
  CHECK(contains(another, facts(checkpoint).base->hash));
  CHECK(contains(another, "--base"));
  CHECK(contains(message_of<DataError>([&] { evaluated(plain, checkpoint); }), "is a checkpoint of an adapter"));
  const auto ids_of = [&](const LoadedJob& job) {
    const CompiledJob plan = compiled(job, Purpose::sample);
    return sample(job, std::span(&plan, 1), checkpoint, {.prompt = "1 2", .num_tokens = 2}, [](const std::string&) {})
        .ids;
  };
  CHECK(contains(message_of<DataError>([&] { ids_of(elsewhere); }), "--base"));
  CHECK(ids_of(loaded).size() == 4);
}

TEST_CASE("an adapter begins from the values of another one, of the same base") {
  const Adapters adapters;
  const Trained first = run(adapters.load("first"));
  const Trained second = run(adapters.load("second", {"train.steps=0", "adapter.from=" + first.report.checkpoint}));
  CHECK(largest_difference(weights_of(second.report.checkpoint), weights_of(first.report.checkpoint)) == 0);
  const auto refusal = [&](const Overrides& more) {
    return message_of<DataError>([&] {
      run(adapters.load("third", both({"adapter.from=" + first.report.checkpoint, "train.steps=0"}, more)));
    });
  };
  CHECK(contains(refusal({"model.init_from=" + adapters.other_base("other")}),
                 facts(first.report.checkpoint).base->hash));
  CHECK(contains(refusal({"adapter.rank=4"}), "lora_A.weight"));
  CHECK(contains(refusal({"adapter.targets=[logits]"}), "logits.lora_A.weight"));
  adapters.jobs.write("peft/adapter_config.json", "{}");
  CHECK(contains(message_of<JobError>([&] { adapters.load("third", {"adapter.from=" + adapters.jobs.path("peft")}); }),
                 "peft_type: missing"));
  CHECK(contains(refusal({"adapter.from=" + adapters.jobs.path("nothing.safetensors")}), "there is no such file"));
}

TEST_CASE("beside an adapter, globs add parameters of the model to its checkpoints") {
  const Adapters adapters;
  const Trained trained = run(adapters.load("run", {"trainable=[\"*ln_f*\"]", "train.steps=3"}));
  Tensors weights = weights_of(trained.report.checkpoint);
  CHECK(weights.size() == 2 * 4 * 2 + 2);
  CHECK(weights.contains("ln_f.weight"));
  CHECK(run(adapters.load("run", {"trainable=[\"*ln_f*\"]"})).report.first_step == 3);
  // With all of the model there is nothing that a base would have to hold.
  const Trained all = run(adapters.load("all", {"trainable=all", "train.steps=3"}));
  CHECK(weights_of(all.report.checkpoint).contains("wte.weight"));
  CHECK_FALSE(facts(all.report.checkpoint).base.has_value());
}

TEST_CASE(
    "an adapter cannot be without a base, and globs, targets and rows that there are not are told at their item") {
  const TinyJobs jobs;
  CHECK(contains(message_of<JobError>([&] { jobs.load("gpt2", "run", {"adapter.rank=3"}); }), "model.init_from"));
  const auto refusal = [&](const Overrides& more) {
    return message_of<JobError>([&] { compiled(jobs.load("gpt2", "run", more)); });
  };
  const std::string glob = refusal({"trainable=[\"*ln_f*\", h.0.attn.c_atn.weight]"});
  CHECK(contains(glob, "trainable[1]"));
  CHECK(contains(glob, "h.0.attn.c_attn.weight"));
  const std::string rows = refusal({"trainable=[\"*ln_f*\", \"wte.weight[32:]\"]"});
  CHECK(contains(rows, "trainable[1]"));
  CHECK(contains(rows, "wte.weight has 32 rows, of which [32:] is no part"));
  const std::string target = refusal({"model.init_from=x.safetensors", "adapter.targets=[\"*c_fx\"]"});
  CHECK(contains(target, "adapter.targets[0]"));
  CHECK(contains(target, "c_fc"));
}

// Multiplications for the gradients of a unit's weights, for `rows` rows: of matrices that are no table of rows. Under
// sequence parallelism A of a column-parallel linear, which is whole on every rank of the tensor axis, reads a part of
// the rows on each.
std::int64_t products_of(const Unit& unit, std::int64_t rows, std::int64_t sequence_ranks) {
  std::int64_t products = 0;
  for (const UnitTensor& tensor : unit.tensors)
    if (tensor.spec.whole.rank() == 2 && !contains(tensor.name, "embed") && !contains(tensor.name, "wte") &&
        !contains(tensor.name, "wpe"))
      products += tensor.elements * rows /
                  (tensor.name.ends_with(".lora_A.weight") && tensor.spec.cuts().empty() ? sequence_ranks : 1);
  return products;
}

double flops_of(const Role& role, Op op) {
  double flops = 0;
  for (const Issued& issued : role.program(ProgramKind::step)->instructions)
    if (const auto* launch = std::get_if<Launch>(&issued.instruction))
      if (const Signature& signature = role.signatures[static_cast<std::size_t>(launch->signature)]; signature.op == op)
        flops += cost_of(signature).flops;
  return flops;
}

TEST_CASE("a plan has the parameters of what is frozen and nothing else, and no product for their gradients") {
  const MixedJobs jobs;
  for (const std::string& line : frozen_jobs()) {
    CAPTURE(line);
    const CompiledJob job = compiled(jobs.load(line, "run"));
    const std::int64_t sequence_ranks = has_word(line, "sp") ? job.plan.mesh.size(Axis::tensor) : 1;
    const std::int64_t rows = job.batch.micro * (has_word(line, "mlp") ? 1 : 8) / job.plan.mesh.size(Axis::context);
    std::int64_t trained = 0, frozen = 0;
    for (const Role& role : job.plan.roles) {
      std::int64_t multiplied = 0;
      for (const Unit& unit : role.units) {
        CAPTURE(unit.name);
        (unit.trained() ? trained : frozen) += static_cast<std::int64_t>(unit.tensors.size());
        for (const Slot::Kind kind : {Slot::Kind::master, Slot::Kind::state, Slot::Kind::gradient, Slot::Kind::residual,
                                      Slot::Kind::strategy_state})
          if (!unit.trained()) CHECK(unit.find(kind) == nullptr);
        if (unit.trained()) CHECK(unit.find(Slot::Kind::state) != nullptr);
        if (unit.trained()) multiplied += products_of(unit, rows, sequence_ranks);
      }
      CHECK(flops_of(role, Op::linear_grad_weight) == static_cast<double>(job.batch.micro_batches * 2 * multiplied));
    }
    CHECK(trained > 0);
    CHECK(frozen > 0);
  }
}
