// Experts over ranks: they train as on one rank under every data strategy, beside tensor and pipeline parallelism; what
// ranks have no room for is counted; checkpoints go from one layout to another; bytes and memory are what the formula
// and the plan say; wrong plans are refused by name.
//
// Bounds: as experts_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/core/error.h"
#include "engine/plan/memory.h"
#include "engine/plan/traffic.h"
#include "engine/plan/verify/verify.h"
#include "engine/train/compare.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr double kBound = 1e-5;
constexpr std::int64_t kLayers = 4, kDim = 16, kSeq = 8, kChosen = 2;

constexpr const char* kGraph = R"(name: mixture
params: {aux: 0.0, capacity: null, bound: 4.0}
inputs:
  tokens: {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: embed, op: embedding, input: tokens, rows: 32, dim: 16, init: {normal: 0.5}}
  - repeat: 4
    name: "h.{index}"
    block: Layer
    nodes:
      - {name: norm, op: rms_norm}
      - {name: gate, op: router, experts: 4, top_k: 2, aux: "${aux}", init: {normal: 0.5}}
      - {name: experts, op: experts, input: [norm, gate], hidden: 8, capacity_factor: "${capacity}", bound: "${bound}", init: {normal: 0.3}}
      - {name: up, op: linear, input: norm, out: 12, bias: false, init: {normal: 0.3}}
      - {name: act, op: silu}
      - {name: down, op: linear, out: 16, bias: false, init: {normal: 0.3}}
      - {name: both, op: add, input: [experts, down]}
      - {name: res, op: add, input: [block.input, both]}
  - {name: last, op: rms_norm}
  - {name: head, op: linear, out: 32, bias: false, init: {normal: 0.2}}
  - {name: loss, op: cross_entropy, input: [head, targets]}
outputs: {loss: loss, logits: head}
)";

struct Jobs : TinyJobs {
  Jobs() { write("mixture.yaml", kGraph); }
  LoadedJob job(const std::string& folder, const Overrides& overrides = {}) const {
    return load("gpt2", folder,
                both({"model={graph: " + path("mixture.yaml") + "}", "checkpoint.resume=none"}, overrides));
  }
  Trained train(const std::string& folder, const Overrides& overrides = {}) const {
    return run(job(folder, overrides));
  }
  std::string mistake(const Overrides& overrides) const {
    try {
      compiled(job("x", overrides));
    } catch (const JobError& error) {
      return error.what();
    }
    return "";
  }
};

Overrides on(int ranks, const std::string& strategy, const Overrides& more = {}) {
  return both({"cluster.devices_per_node=" + std::to_string(ranks), "strategy=" + strategy}, more);
}

void check_same(const Trained& got, const Trained& want) {
  REQUIRE(got.loss.size() == want.loss.size());
  for (std::size_t step = 0; step < want.loss.size(); ++step) {
    CHECK(std::abs(got.loss[step] - want.loss[step]) < kBound);
    CHECK(std::abs(got.grad_norm[step] - want.grad_norm[step]) < kBound * std::fmax(1, want.grad_norm[step]));
  }
  CHECK(largest_difference(tensors_of(got.report.checkpoint), tensors_of(want.report.checkpoint)) < kBound);
  CHECK(got.report.planned_peak_bytes == got.report.allocated_bytes);
}

bool all_zero(const std::vector<std::int64_t>& counts) {
  return std::ranges::all_of(counts, [](std::int64_t count) { return count == 0; });
}

// A plan to be spoilt.
struct ExpertPlan {
  Plan plan;
  ExpertPlan(int ranks, const std::string& strategy) : plan(compiled(Jobs().job("x", on(ranks, strategy))).plan) {}

  Role& role() { return plan.roles[0]; }
  std::vector<Collective*> of_kind(CollectiveKind kind) {
    std::vector<Collective*> found;
    for (Issued& issued : role().programs[0].instructions)
      if (auto* one = std::get_if<Collective>(&issued.instruction); one != nullptr && one->kind == kind)
        found.push_back(one);
    return found;
  }
  /// The reductions of gradients of units that have experts of the rank's own, or the others.
  std::vector<Collective*> reductions(bool own) {
    std::vector<Collective*> found;
    for (Issued& issued : role().programs[0].instructions)
      if (auto* one = std::get_if<Collective>(&issued.instruction);
          one != nullptr && issued.why.phase == Provenance::Phase::reduce && issued.why.unit >= 0 &&
          role().units[static_cast<std::size_t>(issued.why.unit)].own_axes().empty() != own)
        found.push_back(one);
    return found;
  }
  bool refused(std::string_view what) {
    plan_memory(role());
    derive_order(role(), plan.mesh);
    std::string all;
    for (const std::string& line : violations(plan)) {
      if (line.find(what) != std::string::npos) return true;
      all += "\n  " + line;
    }
    MESSAGE("found:" << all);
    return false;
  }
};

}  // namespace

TEST_CASE("experts over ranks train as on one rank") {
  const Jobs jobs;
  const Overrides steps{"train.steps=10"};
  const Trained one = jobs.train("one", steps);
  struct Line {
    int ranks;
    const char* strategy;
    Overrides more{};
  };
  int folder = 0;
  for (const Line& line : std::vector<Line>{
           {2, "{data: ddp, expert: {degree: 2}}"},
           {4, "{data: ddp, expert: {degree: 4}}"},
           {4, "{data: ddp, expert: {degree: 2}}", {"train.batch.micro=1"}},
           {2, "{data: zero1, expert: {degree: 2}}"},
           {4, "{data: zero1, expert: {degree: 2}}"},
           {4, "{data: zero2, expert: {degree: 2}}", {"train.batch.micro=1"}},
           {4, "{data: zero3, expert: {degree: 4}}"},
           {4, "{data: zero3, expert: {degree: 2}}", {"train.batch.micro=1"}},
           {4, "{data: fsdp, expert: {degree: 2}}"},
           {8, "{data: fsdp, expert: {degree: 4}}"},
           {8, "{data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}, expert: {degree: 2}}"},
           {4, "{data: ddp, expert: {degree: 2}, tensor: {degree: 2}}"},
           {8, "{data: fsdp, expert: {degree: 2}, tensor: {degree: 2}}"},
           {8, "{data: zero1, expert: {degree: 4}, tensor: {degree: 2}}"},
           {4, "{data: ddp, expert: {degree: 2}, pipeline: {degree: 2, schedule: 1f1b}}", {"train.batch.micro=1"}},
           {8, "{data: zero1, expert: {degree: 4}, pipeline: {degree: 2, schedule: zb_h1}}", {"train.batch.micro=1"}},
           {8,
            "{data: fsdp, expert: {degree: 2}, pipeline: {degree: 2, schedule: gpipe}, tensor: {degree: 2}}",
            {"train.batch.micro=2"}},
           {4, "{data: fsdp, expert: {degree: 2}}", {"activation_checkpointing.mode=full"}},
           {4, "{data: zero1, expert: {degree: 4}}", {"activation_checkpointing.mode=selective"}},
       }) {
    CAPTURE(line.strategy);
    const Trained got =
        jobs.train("run" + std::to_string(folder++), on(line.ranks, line.strategy, both(steps, line.more)));
    check_same(got, one);
    CHECK(all_zero(got.dropped));
    CHECK(got.dropped.size() == got.loss.size());
  }
}

TEST_CASE("losses of routers, capacities and bf16 are on ranks of experts what they are on one") {
  const Jobs jobs;
  const Overrides aux{"model.with.aux=0.5"}, tight{"model.with.capacity=0.5", "model.with.aux=0.1"};
  const Trained of_aux = jobs.train("aux", aux), of_tight = jobs.train("tight", tight);
  const std::string strategy = "{data: zero1, expert: {degree: 2}}";
  const Trained aux_ranks = jobs.train("aux4", on(4, strategy, aux)),
                tight_ranks = jobs.train("tight4", on(4, strategy, tight));
  check_same(aux_ranks, of_aux);
  check_same(tight_ranks, of_tight);
  CHECK(tight_ranks.dropped == of_tight.dropped);
  CHECK(of_tight.dropped[0] > 0);
  for (std::size_t step = 0; step < of_aux.aux_loss.size(); ++step)
    CHECK(std::abs(aux_ranks.aux_loss[step] - of_aux.aux_loss[step]) < kBound);
  const Overrides bf16{"precision.compute=bf16", "train.steps=3"};
  const Trained one = jobs.train("bf16", bf16),
                two = jobs.train("bf162", on(2, "{data: fsdp, expert: {degree: 2}}", bf16));
  for (std::size_t step = 0; step < one.loss.size(); ++step) CHECK(std::abs(two.loss[step] - one.loss[step]) < 0.05);
}

TEST_CASE("what ranks have no room for is left out, counted and found by verify, and evaluation leaves out nothing") {
  const Jobs jobs;
  const Overrides narrow = on(4, "{data: ddp, expert: {degree: 4}}", {"model.with.bound=0.5", "train.steps=3"});
  const Trained got = jobs.train("narrow", narrow);
  REQUIRE(got.dropped.size() == 3);
  // Of 2 samples' 32 choices 4 go to each rank at most: of 4 ranks' 128 in each of 4 layers 64 at most stay.
  for (const std::int64_t dropped : got.dropped) CHECK(dropped >= kLayers * 64);
  // With 2 rows for each of 2 parts, the fewest, 4 of the choices of each rank stay, wherever its tokens are from.
  const Overrides fewest{"model.with.bound=0.001", "train.steps=3"};
  for (const char* strategy : {"{data: ddp, expert: {degree: 2}}", "{expert: {degree: 2}, context: {degree: 2}}",
                               "{expert: {degree: 2}, tensor: {degree: 2, sequence_parallel: true}}",
                               "{expert: {degree: 2}, context: {degree: 2, kind: ring}}"}) {
    CAPTURE(strategy);
    const Trained of = run(from_the_start(jobs.job("fewest", on(4, strategy, fewest))));
    REQUIRE(of.dropped.size() == 3);
    for (const std::int64_t dropped : of.dropped) CHECK(dropped == kLayers * (128 - 4 * 4));
  }
  const Compiler compiler = [](const LoadedJob& job) { return compiled(job); };
  const auto dropped_of = [&](const Overrides& overrides) {
    const LoadedJob job = jobs.job("verify", overrides);
    const Comparison found = compare(on_threads(job, compiler), on_one_rank(job, 2), 2, compiler);
    for (const Quantity& quantity : found.quantities)
      if (quantity.name == "dropped") {
        CHECK(quantity.holds() == found.holds());
        return quantity;
      }
    FAIL("nothing counted");
    return Quantity{};
  };
  CHECK(!dropped_of(narrow).holds());
  CHECK(dropped_of(on(4, "{data: ddp, expert: {degree: 4}}", {"train.steps=3"})).holds());
  const Overrides eval{"data.val=" + jobs.path("tokens.bin"), "eval={every: 6, batches: 3}", "train.steps=6"};
  const Trained one = jobs.train("one", eval),
                ranks =
                    jobs.train("ranks", on(2, "{data: ddp, expert: {degree: 2}}", both(eval, {"model.with.bound=4"})));
  REQUIRE(one.evaluations.size() == 1);
  REQUIRE(ranks.evaluations.size() == 1);
  CHECK(std::abs(ranks.evaluations[0].val_loss - one.evaluations[0].val_loss) < kBound);
}

TEST_CASE("a checkpoint of one layout goes on under another") {
  const Jobs jobs;
  const Trained whole = jobs.train("whole", {"train.steps=8"});
  const Overrides half{"train.steps=8", "checkpoint.every=4", "checkpoint.keep=null"};
  int number = 0;
  for (const char* format : {"full", "sharded"})
    for (const auto& [first, second] : std::vector<std::pair<Overrides, Overrides>>{
             {on(4, "{data: fsdp, expert: {degree: 2}, tensor: {degree: 2}}"), {}},
             {{}, on(4, "{data: ddp, expert: {degree: 4}}")},
             {on(4, "{data: zero1, expert: {degree: 2}}"),
              on(8, "{data: zero3, expert: {degree: 4}, tensor: {degree: 2}}")},
             {on(4, "{data: ddp, expert: {degree: 2}, pipeline: {degree: 2}}", {"train.batch.micro=1"}),
              on(4, "{data: fsdp, expert: {degree: 4}}")}}) {
      const std::string from = "from" + std::to_string(number), to = "to" + std::to_string(number++);
      const Overrides saved = both(half, {std::string("checkpoint.format=") + format});
      jobs.train(from, both(saved, first));
      copy_step(jobs, from, 4, to);
      const Trained rest = jobs.train(to, both(both(saved, second), {"checkpoint.resume=auto"}));
      CHECK(rest.report.first_step == 4);
      REQUIRE(rest.loss.size() == 4);
      for (std::size_t step = 0; step < 4; ++step) CHECK(std::abs(rest.loss[step] - whole.loss[step + 4]) < kBound);
      CHECK(largest_difference(tensors_of(rest.report.checkpoint), tensors_of(whole.report.checkpoint)) < kBound);
    }
}

TEST_CASE("bytes between ranks of experts are the formula's, and dense gradients go over all data axes") {
  for (const int ranks : {2, 4})
    for (const bool bf16 : {false, true}) {
      const std::int64_t n = ranks, width = bf16 ? 2 : 4;
      const CompiledJob job =
          compiled(Jobs().job("x", on(ranks, "{data: ddp, expert: {degree: " + std::to_string(ranks) + "}}",
                                      {"model.with.bound=1.5", "train.batch.micro=1",
                                       bf16 ? "precision.compute=bf16" : "precision.compute=f32"})));
      const std::int64_t rows = kSeq * kChosen * 3 / 2 / n, micro_batches = 8 / n;
      std::int64_t sent = 0;
      for (const Traffic& one : traffic_of(job.plan, 0, ProgramKind::step))
        if (one.collective == "all_to_all") {
          CHECK(one.axis == "expert");
          sent += one.bytes;
        }
      CHECK(sent == micro_batches * kLayers * (n - 1) * rows * (4 * kDim * width + 12));
    }
}

TEST_CASE("ranks of experts send what is planned, of it by all-to-all what the formula says") {
  const Jobs jobs;
  int folder = 0;
  for (const char* strategy : {"{data: ddp, expert: {degree: 2}}", "{data: ddp, expert: {degree: 4}}",
                               "{data: zero1, expert: {degree: 2}}", "{data: fsdp, expert: {degree: 4}}"}) {
    CAPTURE(strategy);
    const std::int64_t n = std::string(strategy).find("degree: 4") == std::string::npos ? 2 : 4;
    constexpr std::int64_t kSteps = 3, kMicroBatches = 2;
    // A micro-batch of one sample, of which a rank has room for `bound` times the mean at each other one.
    const auto counted = [&](const std::string& bound) {
      const LoadedJob loaded =
          jobs.job("run" + std::to_string(folder++),
                   on(4, strategy, {"model.with.bound=" + bound, "train.batch.micro=1", "train.steps=3"}));
      const std::int64_t planned = bytes_of(traffic_of(compiled(loaded).plan)), sent = run(loaded).report.bytes_sent;
      CHECK(sent == kSteps * planned);
      return sent;
    };
    const std::int64_t rows = kSeq * kChosen / n;  // the mean
    CHECK(counted("2.0") - counted("1.0") == kSteps * kMicroBatches * kLayers * (n - 1) * rows * (4 * kDim * 4 + 12));
  }
}

TEST_CASE("states of experts are those of a rank's own, and nothing of them is sent along their axis") {
  for (const char* data : {"ddp", "zero1", "zero3", "fsdp"}) {
    ExpertPlan of(4, std::string("{data: ") + data + ", expert: {degree: 2}}");
    std::int64_t experts = 0;
    for (const Unit& unit : of.role().units) {
      if (unit.own_axes().empty()) continue;
      CHECK(unit.own_axes() == Axes::of(Axis::expert));
      for (const UnitTensor& tensor : unit.tensors) experts += tensor.elements;
      CHECK(unit.sharded() == (std::string(data) != "ddp"));
    }
    CHECK(experts == kLayers * 3 * 2 * 8 * kDim);
    for (const Collective* one : of.reductions(true)) CHECK(!one->axes.has(Axis::expert));
    for (const Collective* one : of.reductions(false)) CHECK(of.plan.mesh.active(one->axes).has(Axis::expert));
    CHECK(!of.reductions(true).empty());
  }
}

TEST_CASE("plans with experts' gradients summed over the wrong axis, or parts exchanged, are refused") {
  {
    ExpertPlan of(4, "{data: ddp, expert: {degree: 2}}");
    for (Collective* one : of.reductions(true)) one->axes = kTokenAxes;
    CHECK(of.refused("sums what is cut by rows along expert"));
  }
  {
    ExpertPlan of(4, "{data: ddp, expert: {degree: 2}}");
    for (Collective* one : of.reductions(true)) one->axes = Axes::of(Axis::expert);
    CHECK(of.refused("along expert"));
  }
  {
    ExpertPlan of(4, "{data: ddp, expert: {degree: 2}}");
    for (Collective* one : of.reductions(false)) one->axes = Axes::of(Axis::replicate);
    CHECK(of.refused("a sum still to be made along expert"));
  }
  {
    ExpertPlan of(4, "{data: fsdp, expert: {degree: 2}}");
    for (Collective* one : of.reductions(true)) one->axes = kSliceAxes;
    CHECK(of.refused("role 0"));
  }
  {
    ExpertPlan of(4, "{data: ddp, expert: {degree: 2}}");
    of.of_kind(CollectiveKind::all_to_all)[0]->dim = 0;
    CHECK(of.refused("exchanges"));
  }
  {  // each sends all it has to the next
    ExpertPlan of(2, "{data: ddp, expert: {degree: 2}}");
    Collective& one = *of.of_kind(CollectiveKind::all_to_all)[0];
    one.kind = CollectiveKind::shift;
    one.dim = -1;
    CHECK(of.refused("along expert"));
  }
  {  // what goes to one rank goes to another axis's
    ExpertPlan of(4, "{data: ddp, expert: {degree: 2}}");
    of.of_kind(CollectiveKind::all_to_all)[0]->axes = Axes::of(Axis::replicate);
    CHECK(of.refused("along expert"));
  }
}

// Of a micro-batch's rows, one for each sample, each rank of the tensor axis needs as many.
TEST_CASE("rows that a reshape makes longer stay cut where they divide, and are refused where not") {
  const Jobs jobs;
  std::string text = kGraph;
  const std::string line = "  - repeat: 4\n";
  text.insert(text.find(line),
              "  - {name: first, op: rms_norm}\n"
              "  - {name: samples, op: reshape, shape: [batch, 128]}\n"
              "  - {name: scaled, op: rms_norm}\n"
              "  - {name: again, op: reshape, shape: [batch, seq, 16]}\n");
  const Overrides model{"model={graph: " + jobs.write("reshaped.yaml", text) + "}"};
  const auto mistake = [&](const std::string& strategy, const char* micro) {
    return jobs.mistake(both(on(4, strategy, {std::string("train.batch.micro=") + micro}), model));
  };
  const std::string rows = "{tensor: {degree: 4, sequence_parallel: true}}";
  CHECK(mistake(rows, "4").empty());
  CHECK(mistake(rows, "2").find("reshape cannot work on operands that lie so") != std::string::npos);
}

TEST_CASE("what does not go beside expert parallelism is told at its line") {
  const Jobs jobs;
  const auto says = [&](const Overrides& overrides, const std::string& what) {
    const std::string told = jobs.mistake(overrides);
    CAPTURE(told);
    CHECK(told.find(what) != std::string::npos);
  };
  const auto beside = [](const std::string& more, int ranks = 4) {
    return on(ranks, "{expert: {degree: 2}, " + more + "}");
  };
  says(both(beside("data: ddp, context: {degree: 2}"), {"model.with.aux=0.01"}), "of whole samples");
  says(both(beside("data: ddp, context: {degree: 2}"), {"model.with.capacity=1.5"}), "of whole samples");
  says(both(beside("data: ddp, tensor: {degree: 2, sequence_parallel: true}"), {"model.with.aux=0.01"}),
       "of whole samples");
  says(beside("data: {kind: ddp, compression: int8}"), "compression");
  says(beside("data: {kind: local_sgd}"), "local_sgd");
  says(on(3, "{data: ddp, expert: {degree: 3}}", {"train.batch.global=9"}), "degrees that work: 1, 2, 4");
  says(both(beside("data: ddp"),
            {"model={graph: models/gpt2.yaml, with: {layers: 2, heads: 2, dim: 16, vocab: 32, context: 8}}"}),
       "no `experts`");
  says(on(4, "{data: ddp, expert: {degree: 3}}"), "does not divide");
}
