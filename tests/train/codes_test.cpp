// Weights that are gathered and gradients that are summed as codes of 8 bits (ZeRO++), against a serial simulation of
// one step at a time in f64, which shares no code with the engine: it begins with the weights and states of the
// engine's last checkpoint, rounds what the ranks round, in blocks of one tensor, and has no ranks, slices or units.
//
// Bounds. Weights are rounded from the very values that the engine has, so their codes are the same. Gradients are
// those of f32 products, within 1e-5 of a step of their code: elements that come as close as kTie to the middle between
// two codes are left out. What is left differs by rounding, at most kBound after a step of AdamW at a rate of 1e-2.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "engine/core/error.h"
#include "engine/plan/traffic.h"
#include "engine/train/compare.h"
#include "tests/train/serial_mlp.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr double kBound = 2e-6, kTie = 1e-3;
constexpr int kSteps = 4;
const std::string kWide =
    "model.with.hidden=40";  // matrices of 1600 elements: seven blocks, the last of which is shorter

// ---- The simulation ----

using Marks = std::map<std::string, std::set<std::size_t>>;

// Codes of 8 bits and back, by blocks of 256. `ties`: elements whose code a small error may change.
Values rounded(const Values& x, std::set<std::size_t>* ties = nullptr) {
  Values y(x.size());
  for (std::size_t first = 0; first < x.size(); first += 256) {
    const std::size_t last = std::min(x.size(), first + 256);
    float largest = 0;
    for (std::size_t i = first; i < last; ++i) largest = std::fmax(largest, std::fabs(static_cast<float>(x[i])));
    if (largest == 0) continue;
    const float scale = largest / 127.0F, inverse = 127.0F / largest;
    for (std::size_t i = first; i < last; ++i) {
      const double steps = x[i] * static_cast<double>(inverse), code = std::nearbyint(steps);
      y[i] = static_cast<double>(static_cast<float>(code) * scale);
      if (ties != nullptr && std::fabs(std::fabs(steps - code) - 0.5) < kTie) ties->insert(i);
    }
  }
  return y;
}

struct What {
  bool weights = false, gradients = false;
  int ranks = 2, parts = 1;  // whose gradients are rounded: of each rank, so many micro-batches or all of them
};

struct Expected {
  Rank rank;
  Marks ties;
};

Model values_of(const Tensors& tensors, const std::string& suffix) {
  Model model;
  for (const std::string& layer : kLayers)
    for (const std::string& name : {layer + ".weight", layer + ".bias"})
      if (const auto found = tensors.find(name + suffix); found != tensors.end())
        model[name] = Values(found->second.begin(), found->second.end());
  return model;
}

Expected simulate(const LoadedJob& job, const Rank& before, const std::vector<Row>& rows, const What& what, int step) {
  Expected after{before, {}};
  Model read = before.weights;
  for (auto& [name, values] : read)
    if (what.weights) values = rounded(values);
  const std::size_t parts = static_cast<std::size_t>(what.ranks) * static_cast<std::size_t>(what.parts),
                    share = 8 / parts;
  Model sum;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t first = 8 * static_cast<std::size_t>(step - 1) + part * share;
    for (auto& [name, values] : gradient_of(read, std::span(rows).subspan(first, share))) {
      if (what.gradients) values = rounded(values, &after.ties[name]);
      Values& all = sum[name];
      all.resize(values.size());
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += values[i] / static_cast<double>(parts);
    }
  }
  adamw(after.rank, sum, learning_rate(job.job.train, job.job.train.optimizer, step - 1), step);
  return after;
}

double difference(const Expected& expected, const Tensors& saved) {
  Model weights = expected.rank.weights;
  for (const auto& [name, ties] : expected.ties)
    for (const std::size_t i : ties) weights.at(name)[i] = static_cast<double>(saved.at(name)[i]);
  return tests::difference(weights, saved);
}

// ---- The engine ----

Overrides sharded(int ranks, const std::string& strategy, const Overrides& more = {}) {
  return both({"data.normalize=none", "data.shuffle=false", kWide, "train.steps=" + std::to_string(kSteps),
               "cluster.devices_per_node=" + std::to_string(ranks), "checkpoint.every=1", "checkpoint.keep=null",
               "strategy={" + strategy + "}"},
              more);
}

// Every step of a run is the simulated one, and not the one without codes.
void hold(const TinyJobs& jobs, const std::string& folder, const What& what, const Overrides& overrides) {
  const std::vector<Row> rows = rows_of(jobs.path("table.csv"));
  const LoadedJob job = jobs.load("mlp", folder, overrides);
  run(job);
  Rank before{model_of(jobs, {kWide}), {}, {}};
  double apart = 0;
  for (int step = 1; step <= kSteps; ++step) {
    CAPTURE(step);
    const Tensors saved = tensors_of(jobs.path(folder) + "/" + step_name(step));
    const Expected due = simulate(job, before, rows, what, step);
    CHECK(difference(due, saved) < kBound);
    std::size_t ties = 0, all = 0;
    for (const auto& [name, marks] : due.ties) ties += marks.size();
    for (const auto& [name, values] : due.rank.weights) all += values.size();
    CHECK(50 * ties < all);
    apart = std::fmax(apart, difference(simulate(job, before, rows, {.ranks = what.ranks}, step), saved));
    before = {values_of(saved, ""), values_of(saved, ".exp_avg"), values_of(saved, ".exp_avg_sq")};
    REQUIRE(before.m.size() == 2 * kLayers.size());
  }
  CHECK(apart > 20 * kBound);
}

struct Case {
  std::string strategy;
  int ranks, slices;  // all ranks; those that a unit is cut over
};

}  // namespace

TEST_CASE("weights that are gathered as codes are rounded on all ranks alike, as in a serial simulation") {
  const TinyJobs jobs;
  int number = 0;
  for (const Case& one :
       {Case{"data: {kind: zero3, gather: int8}", 2, 2}, Case{"data: {kind: zero3, gather: int8}", 4, 4},
        Case{"data: {kind: fsdp, gather: int8, prefetch: 2}", 4, 4},
        Case{"data: {kind: fsdp, sharding: shard_grad_op, gather: int8}", 2, 2},
        Case{"data: {kind: fsdp, sharding: hybrid_shard, replicate: 2, gather: int8}", 4, 2},
        Case{"data: {kind: fsdp, gather: int8, keep: step, reduce: step}", 2, 2},
        Case{"data: {kind: fsdp, gather: int8}, wrap: {policy: none}", 2, 2},
        Case{"data: {kind: fsdp, gather: int8, secondary: 2}", 4, 4},
        Case{"data: {kind: zero3, gather: int8, secondary: 2, prefetch: 0}, pipeline: {degree: 2}", 8, 4},
        Case{"data: {kind: fsdp, gather: int8}, pipeline: {degree: 2}", 4, 2}})
    for (const char* micro : {"auto", "1"}) {
      CAPTURE(one.strategy);
      CAPTURE(std::string(micro));
      hold(jobs, std::to_string(number++), {.weights = true, .ranks = one.ranks},
           sharded(one.ranks, one.strategy, {"train.batch.micro=" + std::string(micro)}));
    }
}

TEST_CASE("gradients that are exchanged as codes are rounded once on each rank, as in a serial simulation") {
  const TinyJobs jobs;
  int number = 0;
  for (const Case& one :
       {Case{"data: {kind: zero2, reduce_dtype: int8}", 2, 2}, Case{"data: {kind: zero3, reduce_dtype: int8}", 4, 4},
        Case{"data: {kind: fsdp, reduce_dtype: int8}", 2, 2},
        Case{"data: {kind: fsdp, sharding: shard_grad_op, reduce_dtype: int8}", 4, 4},
        Case{"data: {kind: fsdp, sharding: hybrid_shard, replicate: 2, reduce_dtype: int8}", 4, 2},
        Case{"data: {kind: fsdp, reduce: step, reduce_dtype: int8}", 2, 2},
        Case{"data: {kind: fsdp, gather: int8, reduce_dtype: int8}", 4, 4}})
    for (const int parts : {1, 2}) {
      CAPTURE(one.strategy);
      CAPTURE(parts);
      const bool once = one.strategy.find("reduce: step") != std::string::npos;
      hold(jobs, std::to_string(number++),
           {.weights = one.strategy.find("gather") != std::string::npos,
            .gradients = true,
            .ranks = one.ranks,
            .parts = once ? 1 : parts},
           sharded(one.ranks, one.strategy, {"train.batch.micro=" + std::to_string(8 / one.ranks / parts)}));
    }
}

TEST_CASE("codes are sent as planned and as the formula has it, and memory is as planned") {
  const TinyJobs jobs;
  for (const int ranks : {2, 4})
    for (const char* compute : {"f32", "bf16"}) {
      const std::string wide = "keep: step, reduce: step";
      const auto load = [&](const std::string& folder, const std::string& codes) {
        return jobs.load("mlp", folder,
                         sharded(ranks, "data: {kind: fsdp, " + wide + codes + "}",
                                 {"precision.compute=" + std::string(compute), "checkpoint.every=4"}));
      };
      const std::string folder = std::to_string(ranks) + compute;
      const LoadedJob loaded = load(folder, ", gather: int8, reduce_dtype: int8");
      const CompiledJob job = compiled(loaded);
      const Role& role = job.plan.roles.front();
      REQUIRE(role.units.size() == 4);
      std::int64_t bytes = 0;
      for (const Unit& unit : role.units) {
        const std::int64_t slice = unit.elements / ranks;
        CHECK(slice % 256 == 0);
        for (const UnitTensor& tensor : unit.tensors) CHECK(tensor.offset % 256 == 0);
        bytes += 2 * (ranks - 1) * (slice + (4 * (slice / 256) + 63) / 64 * 64);  // there and back
      }
      const auto sent = [](const CompiledJob& of, std::string_view kind) {
        std::int64_t sum = 0;
        for (const Traffic& one : traffic_of(of.plan))
          if (one.collective == kind) sum += one.bytes;
        return sum;
      };
      CHECK(sent(job, "all_gather") + sent(job, "all_to_all") == bytes);
      CHECK(sent(job, "reduce_scatter") == 0);
      const Trained told = run(loaded, job);
      CHECK(told.report.bytes_sent == kSteps * bytes_of(traffic_of(job.plan)));
      CHECK(told.report.allocated_bytes == told.report.planned_peak_bytes);
      REQUIRE(told.report.ranks.size() == static_cast<std::size_t>(ranks));
      for (const RankReport& rank : told.report.ranks) CHECK(rank.allocated_bytes == rank.planned_bytes);
    }
}

// Of a matrix of normals, codes take 0.3% of a weight's size at most: where nothing else is rounded, losses are as
// close.
TEST_CASE("transformers in codes train about as well under data, tensor, context and pipeline axes, in f32 and bf16") {
  const TinyJobs jobs;
  int number = 0;
  for (const std::string more : {"", ", tensor: {degree: 2}", ", tensor: {degree: 2, sequence_parallel: true}",
                                 ", context: {degree: 2}", ", pipeline: {degree: 2, schedule: zb_h1}"})
    for (const char* compute : {"f32", "bf16"}) {
      CAPTURE(more);
      CAPTURE(std::string(compute));
      const auto losses = [&](const std::string& codes) {
        return run(jobs.load("llama", "llama" + std::to_string(number++),
                             {"train.steps=30", "cluster.devices_per_node=4", "train.batch.micro=2",
                              "precision.compute=" + std::string(compute),
                              "strategy={data: {kind: fsdp" + codes + "}" + more + "}"}))
            .loss;
      };
      const std::vector<double> whole = losses(""), codes = losses(", gather: int8, reduce_dtype: int8");
      CHECK(codes.front() != whole.front());
      CHECK(std::fabs(codes.front() / whole.front() - 1) < 0.003);
      CHECK(std::fabs(codes.back() / whole.back() - 1) < 0.05);
    }
}

TEST_CASE("a run in codes that goes on has the bits of one that was not stopped") {
  const TinyJobs jobs;
  const std::string strategy = "data: {kind: fsdp, gather: int8, reduce_dtype: int8}";
  for (const char* compute : {"f32", "bf16"}) {
    const Overrides overrides = sharded(2, strategy, {"precision.compute=" + std::string(compute)});
    const std::string folder(compute);
    const Trained whole = run(jobs.load("mlp", folder, overrides));
    copy_step(jobs, folder, 2, folder + " on");
    const Trained resumed = run(jobs.load("mlp", folder + " on", overrides));
    CHECK(resumed.report.first_step == 2);
    CHECK(files_of(resumed.report.checkpoint) == files_of(whole.report.checkpoint));
  }
}
