// Every strategy is one rank's training: losses, gradient norms, evaluations and weights of 10 steps, of a table of
// jobs in which every two features meet (data strategies, tensor, sequence and pipeline parallelism, all schedules,
// wrap policies, accumulation, clipping, recomputation, dropout, unequal numbers of ignored targets, bf16), against the
// same training on one rank; and on every rank of every job the memory that its plan fixed and the bytes that its plan
// counts.
//
// Bounds in f32. A strategy changes the order of sums, the longest of which has n = 128 terms (16 samples of 8 tokens),
// and nothing else. Rounding errors of a sum are a random walk (Higham and Mary, "A New Approach to Probabilistic
// Rounding Error Analysis", 2019): with u the unit roundoff they stay below 4 √n u, and both orders err:
//   gradients, relative to their norm              γ = 8 √n u = 5.4e-6
//   losses and norms of step t                     (t + 1) γ
//   weights after T steps of AdamW, by its eps e   T · lr · 2 γ norm / e
//
// Bounds in bf16, u' its unit roundoff, where the tensor axis has one rank: sums over samples are in f32, and what is
// rounded otherwise is a gradient that passes a sum over samples on, once for each micro-batch, and a master weight
// that lies between two bf16 values: 2 u' for losses, 8 u' for norms, and 16 u' of the way they go for weights
// (ddp_test.cpp). Where the tensor axis has several, every rank rounds its partial sum of the products that are summed
// over them, which one rank does not: 2 in each of 8 layers and both passes, r = 32 in a row. As a random walk again:
// √r u' for losses, and 4 √r u' for norms and of the way. The context axis is alike: every rank rounds its part of the
// gradients of keys and values, 2 in each of 8 layers, and of what they pass on.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/job/data_strategies.h"
#include "engine/job/pipeline_schedules.h"
#include "engine/plan/traffic.h"
#include "tests/train/mixed_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr double kTerms = 128, kEps = 0.1, kWay = kMixedSteps * 1e-2;  // the way a weight goes: steps · lr
constexpr double kRoundings = 32;  // of partial sums, by every rank of a tensor or context axis
constexpr double kScored = 16;     // right answers are counted of so many, or of 8 times as many

/// By how much two trainings may differ, step by step.
struct Bounds {
  std::vector<double> loss, norm;  ///< relative
  double val_loss = 0, accuracy = 0, weights = 0;
};

double relative(double got, double want) { return std::fabs(got - want) / std::fabs(want); }

Bounds bounds_of_f32(const Trained& want) {
  const double gamma = 8 * std::sqrt(kTerms) * kRoundoffF32;
  Bounds bounds;
  double norm = 0;
  for (std::size_t step = 0; step < want.loss.size(); ++step) {
    bounds.loss.push_back(static_cast<double>(step + 1) * gamma);
    norm = std::fmax(norm, want.grad_norm[step]);
  }
  bounds.norm = bounds.loss;
  bounds.val_loss = bounds.loss.back();
  bounds.weights = kWay * 2 * gamma * norm / kEps;
  return bounds;
}

Bounds bounds_of_bf16(const Trained& want, bool rounds_parts) {
  const std::size_t steps = want.loss.size();
  const double u = kRoundoffBf16, walk = std::sqrt(kRoundings);
  const double loss = rounds_parts ? walk * u : 2 * u, norm = rounds_parts ? 4 * walk * u : 8 * u,
               weights = rounds_parts ? 4 * walk * u : 16 * u;
  return {std::vector<double>(steps, loss), std::vector<double>(steps, norm), loss, 2 / kScored, kWay * weights};
}

void check_same(const Trained& got, const Trained& want, const Bounds& bounds) {
  REQUIRE(got.loss.size() == static_cast<std::size_t>(kMixedSteps));
  REQUIRE(want.loss.size() == got.loss.size());
  for (std::size_t step = 0; step < got.loss.size(); ++step) {
    CAPTURE(step);
    CHECK(relative(got.loss[step], want.loss[step]) < bounds.loss[step]);
    CHECK(relative(got.grad_norm[step], want.grad_norm[step]) < bounds.norm[step]);
  }
  REQUIRE(want.evaluations.size() == 2);
  REQUIRE(got.evaluations.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(relative(got.evaluations[i].val_loss, want.evaluations[i].val_loss) < bounds.val_loss);
    REQUIRE(got.evaluations[i].val_accuracy.has_value());
    CHECK(std::fabs(*got.evaluations[i].val_accuracy - *want.evaluations[i].val_accuracy) <= bounds.accuracy);
  }
  CHECK(largest_difference(weights_of(got.report.checkpoint), weights_of(want.report.checkpoint)) < bounds.weights);
}

void check_promises(const CompiledJob& job, const RunReport& report) {
  const Mesh& mesh = job.plan.mesh;
  REQUIRE(report.ranks.size() == static_cast<std::size_t>(mesh.world_size()));
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    CAPTURE(rank);
    const auto stage = static_cast<std::size_t>(mesh.coordinates(rank)[static_cast<std::size_t>(Axis::pipeline)]);
    const RankReport& told = report.ranks[static_cast<std::size_t>(rank)];
    CHECK(told.planned_bytes == job.memory[stage].peak_bytes);
    CHECK(told.allocated_bytes == told.planned_bytes);
    CHECK(told.bytes_sent == kMixedSteps * bytes_of(traffic_of(job.plan, stage)));
  }
}

// Trainings on one rank, each run once.
class References {
 public:
  explicit References(const MixedJobs& jobs) : jobs_(jobs) {}
  const Trained& of(const std::string& line) {
    const auto [at, fresh] = trained_.try_emplace(line);
    if (fresh) at->second = run(jobs_.load(line, "alone" + std::to_string(trained_.size())));
    return at->second;
  }

 private:
  const MixedJobs& jobs_;
  std::map<std::string, Trained> trained_;
};

// Over the tensor axis products, over the context axis gradients of keys and values.
bool rounds_parts(const std::string& line) {
  return std::ranges::any_of(std::initializer_list{"t2", "t4", "c2", "c4"},
                             [&](const char* word) { return has_word(line, word); });
}

void check_lines(const std::vector<std::string>& lines) {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  References references(jobs);
  int folder = 0;
  for (const std::string& line : lines) {
    CAPTURE(line);
    const Trained& want = references.of(alone(line));
    const LoadedJob loaded = jobs.load(line, "run" + std::to_string(folder++));
    const CompiledJob job = compiled(loaded);
    const Trained got = run(loaded, job);
    const bool bf16 = has_word(line, "bf16");
    check_same(got, want, bf16 ? bounds_of_bf16(want, rounds_parts(line)) : bounds_of_f32(want));
    check_promises(job, got.report);
  }
}

}  // namespace

TEST_CASE("every strategy trains as one rank does, in the memory and with the communication of its plan") {
  std::vector<std::string> lines = mixed_jobs();
  lines.insert(lines.end(), context_jobs().begin(), context_jobs().end());
  lines.insert(lines.end(), frozen_jobs().begin(), frozen_jobs().end());
  lines.insert(lines.end(), muon_jobs().begin(), muon_jobs().end());
  lines.insert(lines.end(), piece_jobs().begin(), piece_jobs().end());
  lines.insert(lines.end(), head_jobs().begin(), head_jobs().end());
  check_lines(lines);
}

TEST_CASE("rings train as one rank does, in the memory and with the communication of their plan") {
  check_lines(ring_jobs());
}

TEST_CASE("with secondary copies of weights every strategy trains as one rank does") { check_lines(secondary_jobs()); }

TEST_CASE("keeping shards, sequence parallelism trains as one rank does") { check_lines(shard_jobs()); }

TEST_CASE("in pairs of micro-batches every strategy trains as one rank does") { check_lines(pair_jobs()); }

// The same arithmetic in another place or order: the same bits, on any number of ranks that share a copy. (The gradient
// of a tied table sums its two readers in another order where micro-batches go in pairs, so no such job is here.)
TEST_CASE("secondary copies, shards that are kept and pairs of micro-batches change no bit of a training") {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  int folder = 0;
  for (const auto& [line, word] : {std::pair<std::string, std::string>{"llama r8 full_shard m2 clip", "secondary2"},
                                   {"llama r8 full_shard m2 clip", "secondary4"},
                                   {"gpt r4 zero3 m4 drop bf16", "secondary2"},
                                   {"packed r8 full_shard t2 sp m2", "secondary2"},
                                   {"gpt r8 zero3 c2 m2", "secondary4"},
                                   {"llama r8 full_shard p2 1f1b m4 keep:use", "secondary2"},
                                   {"gpt r2 ddp t2 sp m2 drop", "shards"},
                                   {"llama r4 zero1 t2 sp m2 bf16 every_2", "shards"},
                                   {"llama r4 zero1 t2 sp m4 clip", "pairs"},
                                   {"packed r2 ddp t2 m2 bf16 drop", "pairs"},
                                   {"llama r4 full_shard t2 m4 reduce:step full", "pairs"},
                                   {"packed r4 ddp t2 p2 gpipe m8 drop", "pairs"}}) {
    CAPTURE(line);
    CAPTURE(word);
    const Trained plain = run(jobs.load(line, "run" + std::to_string(folder++)));
    const Trained other = run(jobs.load(line + " " + word, "run" + std::to_string(folder++)));
    CHECK(other.loss == plain.loss);
    CHECK(other.grad_norm == plain.grad_norm);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      CHECK(files_of(other.report.checkpoint).at(file) == files_of(plain.report.checkpoint).at(file));
  }
}

TEST_CASE("a product that is split is cut piece by piece, marked or not") {
  const CompiledJob job = compiled(MixedJobs().load("pieces r2 ddp t2 m2", "pieces"));
  std::map<std::string, Placement> cuts;
  for (const Unit& unit : job.plan.roles[0].units)
    for (const UnitTensor& tensor : unit.tensors) cuts[tensor.name] = tensor.spec.on(Axis::tensor);
  CHECK(cuts.at("layers.0.qkv_proj.weight") == Placement::shard(0, 3, 2));
  CHECK(cuts.at("layers.7.gate_up_proj.weight") == Placement::shard(0, 2));
  CHECK(cuts.at("layers.7.gate_up_proj.bias") == Placement::shard(0, 2));
  CHECK(cuts.at("layers.7.down.weight") == Placement::shard(1));
}

TEST_CASE("heads that are normalised one by one stay in the pair of products around them") {
  const CompiledJob job = compiled(MixedJobs().load("heads r2 ddp t2 m2", "heads"));
  std::map<std::string, Placement> cuts;
  for (const Unit& unit : job.plan.roles[0].units)
    for (const UnitTensor& tensor : unit.tensors) cuts[tensor.name] = tensor.spec.on(Axis::tensor);
  for (const char* column : {"q_proj", "k_proj", "v_proj", "gate", "up"})
    CHECK(cuts.at(std::string("layers.0.") + column + ".weight") == Placement::shard(0));
  for (const char* row : {"o_proj", "down"})
    CHECK(cuts.at(std::string("layers.0.") + row + ".weight") == Placement::shard(1));
  for (const char* norm : {"q_norm", "k_norm", "norm_1", "norm_2"})
    CHECK(cuts.at(std::string("layers.0.") + norm + ".weight") == Placement::replicate());
}

TEST_CASE("a mixed job trains to the same bits twice") {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  int folder = 0;
  for (const std::string line :
       {"gpt r4 zero3 t2 sp m2 clip selective drop ignore", "packed r4 ddp p4 zb_h1 m4 clip drop ignore",
        "llama r8 hybrid2 p2 1f1b m2 clip full bf16",
        "gpt r8 zero1 t2 p2 interleaved v2 m4 clip every_2 drop ignore bf16"}) {
    CAPTURE(line);
    const Trained first = run(jobs.load(line, "run" + std::to_string(folder++)));
    const Trained second = run(jobs.load(line, "run" + std::to_string(folder++)));
    CHECK(first.loss == second.loss);
    CHECK(first.grad_norm == second.grad_norm);
    CHECK(files_of(first.report.checkpoint).at("model.safetensors") ==
          files_of(second.report.checkpoint).at("model.safetensors"));
    CHECK(files_of(first.report.checkpoint).at("optimizer.safetensors") ==
          files_of(second.report.checkpoint).at("optimizer.safetensors"));
  }
}

TEST_CASE("every two features of strategies meet in the table of jobs") {
  CHECK(mixed_jobs().size() >= 120);
  // Words that shut each other out are left aside: two of one kind, and what only sharded strategies or pipelines have.
  const std::vector<std::string> everywhere{"gpt",  "llama",     "packed",  "mlp",  "clip",
                                            "full", "selective", "every_2", "bf16", "sharded"};
  std::vector<std::string> strategies{"sp",
                                      "t2",
                                      "t4",
                                      "p2",
                                      "p4",
                                      "keep:use",
                                      "keep:pass",
                                      "keep:step",
                                      "reduce:step",
                                      "reduce:micro_batch",
                                      "prefetch:0",
                                      "prefetch:3",
                                      "wrap:transformer",
                                      "wrap:size",
                                      "wrap:names",
                                      "wrap:none"};
  for (const DataRecord& record : data_records())  // under those that average, ranks train otherwise than one does
    if (!record.averages)
      strategies.emplace_back(record.replica_is_node ? "hybrid2"
                              : record.sharding      ? name_of(*record.sharding)
                                                     : name_of(record.kind));
  for (const ScheduleRecord& record : kScheduleRecords) strategies.emplace_back(record.name);
  for (const std::string& one : everywhere)
    for (const std::string& other : strategies) {
      CAPTURE(one);
      CAPTURE(other);
      CHECK(std::any_of(mixed_jobs().begin(), mixed_jobs().end(),
                        [&](const std::string& line) { return has_word(line, one) && has_word(line, other); }));
    }
}
