// What `trainer verify` compares: strategies hold their bounds, and whatever is not the same training does not.
#include "engine/train/compare.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "engine/core/error.h"
#include "engine/job/data_strategies.h"
#include "tests/train/mixture_jobs.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

const Compiler kCompile = [](const LoadedJob& loaded) { return compiled(loaded); };

Comparison compared(const LoadedJob& loaded, std::int64_t steps = 4) {
  const LoadedJob ranks = on_threads(loaded, kCompile);
  return compare(ranks, on_one_rank(loaded, compiled(ranks).batch.micro), steps, kCompile);
}

const Quantity& quantity(const Comparison& comparison, const std::string& name) {
  for (const Quantity& one : comparison.quantities)
    if (one.name == name) return one;
  FAIL("no quantity " << name);
  return comparison.quantities.front();
}

void check_holds(const Comparison& comparison) {
  for (const Quantity& one : comparison.quantities) {
    CAPTURE(one.name);
    CAPTURE(one.difference);
    CAPTURE(one.bound);
    CHECK(one.holds());
  }
}

// A reduction that sums nothing: what a strategy would be that forgot it.
CompiledJob without_reductions(CompiledJob job) {
  for (Role& role : job.plan.roles)
    for (Program& program : role.programs)
      for (Issued& issued : program.instructions)
        if (auto* collective = std::get_if<Collective>(&issued.instruction))
          if (role.buffer(collective->input.region.buffer).category == Category::gradients) collective->axes = {};
  return job;
}

CompiledJob without_stage_sums(CompiledJob job) {
  for (Role& role : job.plan.roles)
    for (Program& program : role.programs)
      for (Issued& issued : program.instructions) {
        auto* collective = std::get_if<Collective>(&issued.instruction);
        if (collective == nullptr || issued.why.phase != Provenance::Phase::reduce) continue;
        if (!collective->axes.has(Axis::pipeline)) continue;
        collective->axes = {};
        collective->stages.clear();
      }
  return job;
}

CompiledJob without_averages(CompiledJob job) {
  for (Role& role : job.plan.roles)
    for (Program& program : role.programs)
      for (Issued& issued : program.instructions)
        if (auto* collective = std::get_if<Collective>(&issued.instruction))
          if (program.kind == ProgramKind::average) collective->axes = {};
  return job;
}

}  // namespace

TEST_CASE("strategies hold the bounds of verify, with weights that moved") {
  const TinyJobs jobs;
  struct Case {
    const char* model;
    Overrides overrides;
  };
  const std::vector<Case> cases{
      {"gpt2", on(2, "zero2", {"train.batch.micro=2", "train.clip_norm=0.5"})},
      {"gpt2", on(4, "{data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}}", {"model.with.dropout=0.1"})},
      {"llama", on(2, "{pipeline: {degree: 2}}", {"train.batch.micro=2", "precision.compute=bf16"})},
      {"mlp", on(2, "ddp", {"train.optimizer={name: sgd, lr: 0.05, momentum: 0.9}"})},
      {"mlp", on(2, "zero1", {"train.optimizer={name: lion, lr: 1.0e-3}"})},
      {"gpt2", on(2, "zero1", {"train.optimizer.states=bf16"})},
      {"gpt2", on(2, "{tensor: {degree: 2, sequence_parallel: true}}", {"train.optimizer.states=int8"})},
  };
  for (const Case& one : cases) {
    CAPTURE(one.overrides.back());
    const Comparison comparison = compared(jobs.load(one.model, "run", one.overrides));
    CHECK(comparison.steps == 4);
    REQUIRE(comparison.quantities.size() == 5);
    check_holds(comparison);
    CHECK(quantity(comparison, "losses").bound < 0.1);
    CHECK(quantity(comparison, "weights").bound < 1);
  }
}

TEST_CASE("another training does not hold: seed, learning rate, samples, decay") {
  const TinyJobs jobs;
  const LoadedJob loaded = jobs.load("gpt2", "run", on(2, "zero1"));
  const LoadedJob ranks = on_threads(loaded, kCompile);
  const LoadedJob one = on_one_rank(loaded, 4);
  REQUIRE(compare(ranks, one, 3, kCompile).holds());

  LoadedJob other = ranks;
  other.job.seed += 1;
  const Comparison seeds = compare(other, one, 3, kCompile);
  CHECK_FALSE(quantity(seeds, "losses").holds());
  CHECK_FALSE(quantity(seeds, "gradients").holds());
  CHECK_FALSE(quantity(seeds, "weights").holds());

  other = ranks;
  other.job.train.optimizer.lr *= 1.1;
  CHECK_FALSE(quantity(compare(other, one, 3, kCompile), "weights").holds());

  other = ranks;
  other.job.data.shuffle = false;
  CHECK_FALSE(quantity(compare(other, one, 3, kCompile), "gradients").holds());
}

// Of local SGD the truth is a serial simulation: it stops in the middle of a round, at its end, and after the last
// step.
TEST_CASE("local SGD holds the bounds of verify against a serial simulation, in every form") {
  const TinyJobs jobs;
  for (const auto& [ranks, data] :
       std::vector<std::pair<int, std::string>>{{2, "every: 2"},
                                                {4, "every: 3"},
                                                {2, "every: 2, outer: {lr: 0.7, momentum: 0.9}"},
                                                {2, "every: 2, outer: {lr: 0.7, momentum: 0.9, nesterov: false}"},
                                                {2, "every: 4, parts: 2, outer: {lr: 0.7, momentum: 0.9}"},
                                                {4, "every: 2, outer: {lr: 0.7, momentum: 0.9, compression: int8}"},
                                                {2, "every: 2, outer: {lr: 0.7, momentum: 0.9, compression: bf16}"},
                                                {2,
                                                 "every: 4, parts: 2, outer: {lr: 0.7, momentum: 0.9, "
                                                 "compression: {top_k: 0.2}}"},
                                                {4,
                                                 "every: 2, outer: {lr: 0.7, momentum: 0.9, compression: {top_k: "
                                                 "0.2}}}, tensor: {degree: 2"},
                                                {4,
                                                 "every: 2, outer: {lr: 0.7, momentum: 0.9, compression: int8}}, "
                                                 "tensor: {degree: 2"},
                                                {4,
                                                 "every: 2, outer: {lr: 0.7, momentum: 0.9, compression: int8}}, "
                                                 "pipeline: {degree: 2"},
                                                {2, "every: 2, delayed: true"}})
    for (const auto& [name, steps] : std::vector<std::pair<std::string, int>>{
             {"mlp", 4}, {"mlp", 5}, {"mlp", 6}, {"gpt2", 5}, {"gpt2 with dropout", 4}}) {
      CAPTURE(data);
      CAPTURE(name);
      CAPTURE(steps);
      Overrides overrides{"cluster.devices_per_node=" + std::to_string(ranks), "train.steps=6", "checkpoint.every=12",
                          "strategy={data: {kind: local_sgd, " + data + "}}"};
      const std::string model = name.substr(0, name.find(' '));
      if (model != name) overrides.push_back("model.with.dropout=0.2");
      const LoadedJob loaded = jobs.load(model, "run", overrides);
      const LoadedJob apart = on_threads(loaded, kCompile);
      REQUIRE(is_simulated(apart));
      const Comparison comparison = compare(apart, on_one_rank(loaded, 1), steps, kCompile);
      CHECK(comparison.steps == steps);
      for (const Quantity& one : comparison.quantities) {
        CAPTURE(one.name);
        CHECK(one.difference <= one.bound);
      }
    }
}

TEST_CASE("local SGD that averages less, at other steps or by another rate does not hold") {
  const TinyJobs jobs;
  const LoadedJob loaded =
      jobs.load("mlp", "run",
                {"cluster.devices_per_node=2", "train.steps=6", "checkpoint.every=6", "train.optimizer.lr=1.0e-2",
                 "strategy={data: {kind: local_sgd, every: 3, outer: {lr: 0.7, momentum: 0.9}}}"});
  const auto holds = [&](const std::function<void(Job&)>& spoil, bool averages = true) {
    const Compiler broken = [&](const LoadedJob& job) {
      LoadedJob other = job;
      if (record_of(job.job.strategy.data).averages) spoil(other.job);
      return averages ? compiled(other) : without_averages(compiled(other));
    };
    return quantity(compare(on_threads(loaded, kCompile), on_one_rank(loaded, 1), 6, broken), "weights").holds();
  };
  CHECK(holds([](Job&) {}));
  CHECK_FALSE(holds([](Job&) {}, false));
  CHECK_FALSE(holds([](Job& job) { job.strategy.data.outer->lr = 0.5; }));
  CHECK_FALSE(holds([](Job& job) { job.strategy.data.outer->nesterov = false; }));
  CHECK_FALSE(holds([](Job& job) { job.strategy.data.outer->compression = {Compression::Kind::top_k, 0.5}; }));
}

// What travels between averages is a difference of weights, which all ranks of a context or pipeline axis make
// together.
TEST_CASE("outer gradients in codes hold beside context and pipeline axes") {
  const TinyJobs jobs;
  for (const char* axes : {"context: {degree: 2}", "pipeline: {degree: 2}"}) {
    CAPTURE(axes);
    const LoadedJob loaded =
        jobs.load("gpt2", "run",
                  on(4, "{data: {kind: local_sgd, every: 2, outer: {lr: 0.7, momentum: 0.9, compression: int8}}, " +
                            std::string(axes) + "}"));
    check_holds(compare(on_threads(loaded, kCompile), on_one_rank(loaded, 1), 5, kCompile));
  }
}

// Of ranks that send codes it is another serial simulation (serial_steps.h).
TEST_CASE("codes of gradients and weights hold the bounds of verify against a serial simulation") {
  const TinyJobs jobs;
  const std::string mixture = jobs.write("mixture_graph.yaml", kMixture);
  struct Case {
    const char* model;
    int ranks;
    std::string data;
    Overrides more{};
    std::string axes{};
    double most_bound = 0.03;  // of gradients
  };
  const char* const kMuon =
      "train.optimizer={name: muon, lr: 1.0e-2, momentum: 0.9, others: {name: adamw, lr: 1.0e-3}}";
  const std::vector<Case> cases{
      {"mlp", 2, "{kind: ddp, compression: bf16}"},
      {"gpt2", 2, "{kind: ddp, compression: bf16}", {"model.with.dropout=0.2", "train.batch.micro=1"}},
      {"gpt2", 4, "{kind: ddp, compression: int8}"},
      {"gpt2", 2, "{kind: ddp, compression: {top_k: 0.1}}", {"train.batch.micro=2"}},
      {"mlp", 4, "{kind: ddp, compression: {top_k: 0.25}}", {"train.optimizer={name: sgd, lr: 0.05, momentum: 0.9}"}},
      {"gpt2", 2, "{kind: zero1, compression: bf16}", {"precision.compute=bf16"}},
      {"llama", 2, "{kind: zero1, compression: int8}", {"train.clip_norm=0.5"}},
      {"mlp", 2, "{kind: ddp, compression: int8}", {"train.optimizer={name: lion, lr: 1.0e-3}"}},
      {"gpt2", 2, "{kind: zero2, reduce_dtype: int8}"},
      {"gpt2", 2, "{kind: fsdp, reduce_dtype: int8}", {"train.batch.micro=2"}},
      {"llama", 4, "{kind: zero3, gather: int8, reduce_dtype: int8}"},
      {"gpt2", 2, "{kind: fsdp, gather: int8}", {"precision.compute=bf16", "train.batch.micro=2"}},
      {"llama", 4, "{kind: fsdp, sharding: hybrid_shard, replicate: 2, gather: int8, reduce_dtype: int8}"},
      // Frozen weights travel as codes too.
      {"gpt2", 2, "{kind: zero3, gather: int8}", {"trainable=[\"h.*\"]"}},
      {"gpt2",
       4,
       "{kind: fsdp, gather: int8}",
       {"trainable=[\"h.*\"]", "precision.compute=bf16"},
       ", tensor: {degree: 2}"},
      // Norms and biases are on all ranks of a tensor axis, matrices are not.
      {"gpt2", 4, "{kind: ddp, compression: {top_k: 0.1}}", {}, ", tensor: {degree: 2}"},
      {"llama", 4, "{kind: ddp, compression: {top_k: 0.2}}", {}, ", tensor: {degree: 2, sequence_parallel: true}"},
      {"gpt2", 4, "{kind: ddp, compression: int8}", {"train.clip_norm=0.5"}, ", tensor: {degree: 2}"},
      {"llama", 4, "{kind: zero1, compression: int8}", {}, ", tensor: {degree: 2, sequence_parallel: true}"},
      {"llama", 4, "{kind: zero1, compression: bf16}", {}, ", tensor: {degree: 2}"},
      {"gpt2", 4, "{kind: zero2, reduce_dtype: int8}", {}, ", tensor: {degree: 2}"},
      {"llama", 8, "{kind: zero3, gather: int8, reduce_dtype: int8}", {}, ", tensor: {degree: 2}"},
      {"mlp", 4, "{kind: ddp, compression: int8}", {"train.batch.micro=1"}, ", pipeline: {degree: 2}"},
      {"llama", 4, "{kind: zero1, compression: int8}", {"train.batch.micro=1"}, ", pipeline: {degree: 2}"},
      {"llama",
       8,
       "{kind: fsdp, reduce_dtype: int8}",
       {"train.batch.micro=1"},
       ", tensor: {degree: 2}, pipeline: {degree: 2}"},
      // Ranks that have a part of each sequence send their part of a gradient.
      {"gpt2", 4, "{kind: ddp, compression: int8}", {}, ", context: {degree: 2}"},
      {"llama", 4, "{kind: ddp, compression: {top_k: 0.2}}", {}, ", context: {degree: 2, kind: ring}"},
      {"llama", 4, "{kind: zero1, compression: bf16}", {}, ", context: {degree: 4, kind: ring}"},
      {"gpt2", 4, "{kind: zero2, reduce_dtype: int8}", {"model.with.dropout=0.2"}, ", context: {degree: 2}"},
      {"llama",
       8,
       "{kind: fsdp, gather: int8, reduce_dtype: int8}",
       {"train.batch.micro=2"},
       ", context: {degree: 2, kind: ring}, tensor: {degree: 2}"},
      {"gpt2",
       4,
       "{kind: fsdp, reduce_dtype: int8}",
       {"train.batch.micro=1", "model.with.dropout=0.2"},
       ", tensor: {degree: 2, sequence_parallel: true}"},
      {"gpt2",
       4,
       "{kind: zero2, reduce_dtype: int8}",
       {"train.batch.micro=1"},
       ", tensor: {degree: 2, sequence_parallel: true, overlap: true}"},
      // Experts are cut, and all else is alike, along the axis of experts.
      {"mixture", 4, "{kind: zero3, gather: int8, reduce_dtype: int8}", {}, ", expert: {degree: 2}"},
      {"mixture", 4, "{kind: zero1, compression: int8}", {}, ", expert: {degree: 2}"},
      {"mixture", 2, "{kind: fsdp, reduce_dtype: int8}", {"precision.compute=bf16"}, ", expert: {degree: 2}", 0.05},
      {"mixture",
       8,
       "{kind: zero2, reduce_dtype: int8}",
       {},
       ", expert: {degree: 2}, context: {degree: 2}, tensor: {degree: 2, sequence_parallel: true}"},
      {"mixture", 4, "{kind: zero1, compression: bf16}", {}, ", expert: {degree: 2}, context: {degree: 2}"},
      {"mixture", 4, "{kind: zero2, reduce_dtype: int8}", {"train.batch.micro=1"}, ", expert: {degree: 4}"},
      {"mixture", 4, "{kind: ddp, compression: int8}", {"model.with.balance=bias", "model.with.rate=0.05"}},
      {"mixture", 2, "{kind: fsdp, reduce_dtype: int8}", {"model.with.balance=bias", "train.batch.micro=2"}},
      {"mixture",
       8,
       "{kind: fsdp, reduce_dtype: int8}",
       {"train.batch.micro=1"},
       ", expert: {degree: 2}, pipeline: {degree: 2}"},
      // The first and the last stage share a table, and each has a part of its gradient.
      {"gpt2", 4, "{kind: ddp, compression: int8}", {"train.batch.micro=1"}, ", pipeline: {degree: 2}"},
      {"gpt2", 4, "{kind: zero1, compression: bf16}", {"train.batch.micro=1"}, ", pipeline: {degree: 2}"},
      {"gpt2",
       8,
       "{kind: fsdp, gather: int8, reduce_dtype: int8}",
       {"train.batch.micro=1", "model.with.dropout=0.2"},
       ", pipeline: {degree: 2}, tensor: {degree: 2}"},
      {"gpt2", 2, "{kind: ddp, compression: int8}", {kMuon}},
      {"llama", 4, "{kind: zero1, compression: bf16}", {kMuon}, ", tensor: {degree: 2}"},
      {"gpt2",
       2,
       "{kind: ddp, compression: int8}",
       {"train.optimizer={name: adamw, lr: 1.0e-3, states: int8}"},
       {},
       0.07},
      {"gpt2",
       2,
       "{kind: zero2, reduce_dtype: int8}",
       {"train.optimizer={name: adamw, lr: 1.0e-3, states: bf16}"},
       {},
       0.05},
  };
  for (const Case& one : cases) {
    CAPTURE(one.model);
    CAPTURE(one.data);
    CAPTURE(one.axes);
    Overrides overrides = on(one.ranks, "{data: " + one.data + one.axes + "}", one.more);
    const bool experts = one.model == std::string("mixture");
    if (experts) overrides.insert(overrides.begin(), "model={graph: " + mixture + "}");
    const LoadedJob ranks = on_threads(jobs.load(experts ? "gpt2" : one.model, "run", overrides), kCompile);
    REQUIRE(is_simulated(ranks));
    const Comparison comparison = compare(ranks, on_one_rank(ranks, compiled(ranks).batch.micro), 5, kCompile);
    CHECK(comparison.steps == 5);
    check_holds(comparison);
    CHECK(quantity(comparison, "gradients").bound < one.most_bound);
    CHECK(quantity(comparison, "sums").bound < 0.025);
    const CompiledJob plan = compiled(ranks);
    const bool shares =
        std::ranges::any_of(plan.plan.roles.front().units, [](const Unit& unit) { return !unit.stages.empty(); });
    CHECK(shares == (one.model == std::string("gpt2") && one.axes.find("pipeline") != std::string::npos));
  }
}

// What ranks do instead of what their job says.
TEST_CASE("codes of another kind, without feedback or of other weights do not hold") {
  const TinyJobs jobs;
  const auto job = [&](const std::string& data, const std::string& axes) {
    return jobs.load("gpt2", "run",
                     on(axes.empty() ? 2 : 4, "{data: " + data + axes + "}", {"train.optimizer={name: sgd, lr: 0.2}"}));
  };
  const auto holds = [&](const std::string& asked, const std::string& done, const std::string& axes = "") {
    const LoadedJob ranks = on_threads(job(asked, axes), kCompile), others = on_threads(job(done, axes), kCompile);
    const Compiler broken = [&](const LoadedJob& one) { return compiled(is_simulated(one) ? others : one); };
    return compare(ranks, on_one_rank(ranks, 2), 6, broken).holds();
  };
  for (const auto& [asked, done] : std::vector<std::pair<std::string, std::string>>{
           {"{kind: ddp, compression: int8}", "{kind: ddp, compression: bf16}"},
           {"{kind: ddp, compression: {top_k: 0.1}}", "{kind: ddp, compression: {top_k: 0.12}}"},
           {"{kind: zero1, compression: int8}", "{kind: zero2, reduce_dtype: int8}"},  // no feedback
           {"{kind: zero2, reduce_dtype: int8}", "{kind: zero1, compression: int8}"},
           {"{kind: zero3, gather: int8}", "zero3"},
       }) {
    CAPTURE(asked);
    CAPTURE(done);
    CHECK(holds(asked, asked));
    CHECK_FALSE(holds(asked, done));
  }
  for (const char* axes : {", context: {degree: 2}", ", pipeline: {degree: 2}"}) {
    CAPTURE(axes);
    CHECK(holds("{kind: ddp, compression: int8}", "{kind: ddp, compression: int8}", axes));
    CHECK_FALSE(holds("{kind: ddp, compression: int8}", "{kind: ddp, compression: bf16}", axes));
    CHECK_FALSE(holds("{kind: zero2, reduce_dtype: int8}", "zero2", axes));
  }
}

TEST_CASE("ranks in codes whose stages keep their part of a shared table, or whose gradients are others, do not hold") {
  const TinyJobs jobs;
  const LoadedJob loaded =
      jobs.load("gpt2", "run", on(4, "{data: {kind: ddp, compression: int8}, pipeline: {degree: 2}}"));
  const LoadedJob ranks = on_threads(loaded, kCompile);
  const auto compared_by = [&](const std::function<CompiledJob(LoadedJob)>& of_codes,
                               const std::function<CompiledJob(LoadedJob)>& of_ranks) {
    const Compiler compile = [&](const LoadedJob& job) {
      if (is_simulated(job)) return of_codes(job);
      return job.job.cluster.devices_per_node > 1 ? of_ranks(job) : compiled(job);
    };
    return compare(ranks, on_one_rank(ranks, compiled(ranks).batch.micro), 4, compile);
  };
  CHECK(compared_by(kCompile, kCompile).holds());
  const Comparison apart =
      compared_by([](const LoadedJob& job) { return without_stage_sums(compiled(job)); }, kCompile);
  CHECK_FALSE(quantity(apart, "weights").holds());
  CHECK(quantity(apart, "sums").holds());
  const Comparison rounded = compared_by(kCompile, [](LoadedJob job) {
    job.job.precision.compute = DType::bf16;
    return compiled(job);
  });
  CHECK_FALSE(quantity(rounded, "sums").holds());
}

// Statistics of all ranks are those of one rank where it takes all of their samples at once.
TEST_CASE("batch norms hold, with statistics of their own and joined ones, in codes too") {
  const TinyJobs jobs;
  const std::string graph = jobs.write("norms_graph.yaml", R"(name: norms
params: {sync: true}
inputs:
  features: {dtype: f32, shape: [batch, 6]}
  targets: {dtype: i32, shape: [batch]}
nodes:
  - {name: fc, op: linear, input: features, out: 8, init: {normal: 0.4}}
  - {name: norm, op: batch_norm, sync: "${sync}"}
  - {name: act, op: relu}
  - {name: head, op: linear, out: 4, init: {normal: 0.4}}
  - {name: loss, op: cross_entropy, input: [head, targets]}
outputs: {loss: loss, logits: head}
)");
  const auto job = [&](const std::string& data, bool sync, int micro) {
    return on_threads(jobs.load("mlp", "run",
                                on(2, "{data: " + data + "}",
                                   {"model={graph: " + graph + ", with: {sync: " + (sync ? "true" : "false") + "}}",
                                    "train.batch.micro=" + std::to_string(micro)})),
                      kCompile);
  };
  for (const char* data : {"{kind: ddp}", "{kind: ddp, compression: int8}", "{kind: fsdp, reduce_dtype: int8}"})
    for (const auto& [sync, micro] : {std::pair(false, 2), {false, 4}, {true, 4}}) {
      CAPTURE(data);
      CAPTURE(sync);
      const LoadedJob ranks = job(data, sync, micro);
      check_holds(compare(ranks, on_one_rank(ranks, micro_of_one_rank(ranks, compiled(ranks))), 4, kCompile));
    }
  const LoadedJob several = job("{kind: ddp}", true, 2);
  CHECK_THROWS_AS(micro_of_one_rank(several, compiled(several)), JobError);
}

TEST_CASE("ranks in codes train on rows of any length, if they send them once a step") {
  const TinyJobs jobs;
  std::string rows;
  for (int i = 0; i < 40; ++i)
    rows += R"({"prompt": "a", "completion": ")" + std::string(static_cast<std::size_t>(1 + i * i % 9), 'b') + "\"}\n";
  const std::string file = jobs.write("rows.jsonl", rows);
  const auto job = [&](const std::string& data, const Overrides& more = {}) {
    return jobs.load(
        "llama", "run",
        on(2, "{data: " + data + "}",
           both({"data={format: completion, train: " + file + ", val: " + file + ", tokenizer: bytes, seq_len: 16}",
                 "model.with.vocab=257"},
                more)));
  };
  const LoadedJob once = on_threads(job("{kind: ddp, compression: int8}", {"train.batch.micro=2"}), kCompile);
  check_holds(compare(once, on_one_rank(once, 2), 4, kCompile));
  CHECK_THROWS_AS(on_threads(job("{kind: fsdp, reduce_dtype: int8}", {"train.batch.micro=2"}), kCompile), JobError);
  CHECK_THROWS_AS(on_threads(job("{kind: local_sgd, every: 2}"), kCompile), JobError);
}

TEST_CASE("a strategy that forgets its reductions does not hold") {
  const TinyJobs jobs;
  const LoadedJob loaded = jobs.load("gpt2", "run", on(2, "ddp"));
  const Compiler broken = [](const LoadedJob& job) { return without_reductions(compiled(job)); };
  const Comparison comparison = compare(on_threads(loaded, kCompile), on_one_rank(loaded, 4), 3, broken);
  CHECK_FALSE(comparison.holds());
  CHECK_FALSE(quantity(comparison, "gradients").holds());
  CHECK_FALSE(quantity(comparison, "weights").holds());
}

// Each rank updates from its own gradients: the weights that they had alike, and both moments of each.
TEST_CASE("replicas that went apart are named") {
  const TinyJobs jobs;
  const Compiler broken = [](const LoadedJob& job) { return without_reductions(compiled(job)); };
  const auto replicas = [&](const std::string& strategy, const Compiler& compile) {
    const LoadedJob loaded = jobs.load("mlp", "run", on(2, strategy));
    return compare(on_threads(loaded, compile), on_one_rank(loaded, 4), 3, compile).different_replicas;
  };
  CHECK(replicas("ddp", kCompile).empty());
  const std::vector<std::string> apart = replicas("ddp", broken);
  CHECK(std::ranges::count(apart, "layers.0.fc.weight") == 1);
  CHECK(std::ranges::count(apart, "layers.0.fc.weight.exp_avg") == 1);
  CHECK(std::ranges::count(apart, "layers.0.fc.weight.exp_avg_sq") == 1);
  CHECK(replicas("zero1", kCompile).empty());  // slices: no rank holds what another does
}

TEST_CASE("verify leaves the job's checkpoints and logs alone, and stops after the job's own steps") {
  const TinyJobs jobs;
  const LoadedJob loaded = jobs.load(
      "mlp", "mine", on(2, "ddp", {"log.jsonl=" + jobs.path("log.jsonl"), "train.steps=2", "checkpoint.every=1"}));
  CHECK(compared(loaded, 5).steps == 2);
  CHECK_FALSE(std::filesystem::exists(jobs.path("mine")));
  CHECK_FALSE(std::filesystem::exists(jobs.path("log.jsonl")));
}

TEST_CASE("what several nodes decide stays when verify runs them on one") {
  const TinyJobs jobs;
  const LoadedJob loaded = jobs.load(
      "mlp", "run", {"cluster={nodes: 2, devices_per_node: 2}", "strategy.data={kind: fsdp, sharding: hybrid_shard}"});
  const LoadedJob ranks = on_threads(loaded, kCompile);
  CHECK(compiled(ranks).plan.mesh == compiled(loaded).plan.mesh);
  CHECK(compiled(ranks).plan.mesh.size(Axis::replicate) == 2);
}

TEST_CASE("what can neither be one rank's training nor be simulated is refused by name") {
  const TinyJobs jobs;
  const auto refuses = [&](const std::string& key, const std::string& strategy, const Overrides& more) {
    try {
      on_threads(jobs.load("gpt2", "run", on(2, strategy, more)), kCompile);
    } catch (const JobError& error) {
      return error.diagnostics().front().path == key;
    }
    return false;
  };
  const std::string codes = "{data: {kind: zero3, gather: int8}}";
  CHECK_FALSE(refuses("strategy", codes, {}));
  CHECK(refuses("trainable", codes, {"trainable=[\"wte.weight[32:]\"]"}));
  CHECK(refuses("strategy.data.gather", codes,
                {"adapter={rank: 2, targets: [\"*c_attn\"]}", "model.init_from=" + jobs.path()}));
}
