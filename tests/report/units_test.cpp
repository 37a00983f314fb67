// What the plan says of units, against what the strategies promise: the table of the design.
#include "engine/report/units.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;
using namespace trainer::report;

namespace {

constexpr int kMicroBatches = 4;

// Of ranks with four micro-batches each.
CompiledJob job_of(const TinyJobs& jobs, const std::string& data, const std::string& optimizer = "adamw",
                   int ranks = 2) {
  return compiled(jobs.load(
      "gpt2", "run",
      {"cluster.devices_per_node=" + std::to_string(ranks), "strategy.data=" + data, "train.batch.micro=1",
       "train.batch.global=" + std::to_string(kMicroBatches * ranks), "train.optimizer={name: " + optimizer + "}"}));
}

struct Promise {
  const char* data;
  int states, gradients, weights;
  std::int64_t gathers, reductions;  // of the first block, which is not read again soon after its forward pass
  int ranks = 2;
};

}  // namespace

TEST_CASE("a unit is divided, gathered and reduced as its strategy promises") {
  const TinyJobs jobs;
  const Promise promises[] = {
      {"{kind: ddp}", 1, 1, 1, 0, 1},
      {"{kind: zero1}", 2, 1, 1, 1, 1},
      {"{kind: zero2}", 2, 2, 1, 1, kMicroBatches},
      {"{kind: fsdp, keep: use}", 2, 2, 2, 2 * kMicroBatches, kMicroBatches},
      {"{kind: fsdp, keep: pass}", 2, 2, 2, kMicroBatches, kMicroBatches},
      {"{kind: fsdp, keep: step, reduce: step}", 2, 1, 2, 1, 1},
      {"{kind: fsdp, keep: use, gather: int8, reduce_dtype: int8}", 2, 2, 2, 2 * kMicroBatches, kMicroBatches},
      {"{kind: fsdp, secondary: 2}", 4, 4, 4, 2 * kMicroBatches, kMicroBatches, 4},
      {"{kind: fsdp, sharding: no_shard}", 1, 1, 1, 0, 1},
      {"{kind: ddp, compression: int8}", 1, 1, 1, 0, 1},
      {"{kind: ddp, compression: {top_k: 0.1}}", 1, 1, 1, 0, 1},
  };
  for (const char* optimizer : {"adamw", "muon"})
    for (const Promise& promise : promises) {
      CAPTURE(std::string(optimizer));
      CAPTURE(std::string(promise.data));
      const CompiledJob job = job_of(jobs, promise.data, optimizer, promise.ranks);
      const std::vector<UnitFacts> units = units_of(job.plan);
      REQUIRE_FALSE(units.empty());
      const UnitFacts& unit = units[units.size() > 1 ? 1 : 0];
      CHECK(unit.states_over == promise.states);
      CHECK(unit.gradients_over == promise.gradients);
      CHECK(unit.weights_over == promise.weights);
      CHECK(unit.reductions == promise.reductions);
      CHECK(unit.gathers == promise.gathers);
      CHECK(unit.gathered_share > 0);
      CHECK((unit.gathered_share < 1) == (promise.weights > 1));
    }
}

TEST_CASE("units that begin in one block have labels of their own") {
  const TinyJobs jobs;
  std::set<std::string> labels;
  const CompiledJob job = compiled(
      jobs.load("gpt2", "run",
                {"cluster.devices_per_node=2", "strategy={data: {kind: ddp}, wrap: {policy: size, min_params: 100}}",
                 "train.batch.micro=1"}));
  const std::vector<UnitFacts> units = units_of(job.plan);
  REQUIRE(units.size() > 4);
  for (const UnitFacts& unit : units) labels.insert(unit.label);
  CHECK(labels.size() == units.size());
  CHECK(std::any_of(labels.begin(), labels.end(), [](const std::string& label) {
    return label.starts_with("h.0.") && label.find(" … ") != std::string::npos;
  }));
}

TEST_CASE("copies kept longer are there for more of the step") {
  const TinyJobs jobs;
  const auto share = [&](const std::string& keep) {
    const CompiledJob job = job_of(jobs, "{kind: fsdp, keep: " + keep + "}");
    return units_of(job.plan)[1].gathered_share;
  };
  CHECK(share("use") < share("pass"));
  CHECK(share("pass") <= share("step"));
}

TEST_CASE("a unit's bytes are counted once for each collective") {
  const TinyJobs jobs;
  const CompiledJob job = job_of(jobs, "{kind: zero1}");
  for (const UnitFacts& unit : units_of(job.plan)) {
    REQUIRE(unit.collectives.size() == 2);
    for (const UnitCollective& one : unit.collectives) {
      CHECK(one.axis == "shard");
      CHECK(one.count == 1);
      CHECK(one.bytes == 4 * unit.unit->elements);
    }
  }
}

TEST_CASE("units are named by what their tensors share") {
  const auto text = [](std::initializer_list<const char*> names) {
    Unit unit;
    for (const char* name : names) unit.tensors.emplace_back().name = name;
    return tensors_text(unit);
  };
  CHECK(text({"h.1.attn.weight", "h.1.ln.bias"}) == "h.1.*");
  CHECK(text({"h.1.attn.weight", "h.1.ln.bias", "h.10.ln.bias"}) == "h.*");
  CHECK(text({"wte.weight"}) == "wte.weight");
  CHECK(text({"wte.weight", "ln_f.bias"}) == "wte.weight … ln_f.bias");
}
