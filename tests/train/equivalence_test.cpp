// Every strategy is one rank's training: losses, gradient norms, evaluations and weights of 10 steps, of a table of jobs in which every
// two features meet (data strategies, tensor, sequence and pipeline parallelism, all schedules, wrap policies, accumulation, clipping,
// recomputation, dropout, unequal numbers of ignored targets, bf16), against the same training on one rank; and on every rank of every job
// the memory that its plan fixed and the bytes that its plan counts.
//
// Bounds in f32. A strategy changes the order of sums, the longest of which has n = 128 terms (16 samples of 8 tokens), and nothing else.
// Rounding errors of a sum are a random walk (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019): with u the
// unit roundoff they stay below 4 √n u, and both orders err:
//   gradients, relative to their norm              γ = 8 √n u = 5.4e-6
//   losses and norms of step t                     (t + 1) γ
//   weights after T steps of AdamW, by its eps e   T · lr · 2 γ norm / e
//
// Bounds in bf16, u' its unit roundoff, where the tensor axis has one rank: sums over samples are in f32, and what is rounded otherwise is
// a gradient that passes a sum over samples on, once for each micro-batch, and a master weight that lies between two bf16 values: 2 u' for
// losses, 8 u' for norms, and 16 u' of the way they go for weights (ddp_test.cpp). Where the tensor axis has several, every rank rounds its
// partial sum of the products that are summed over them, which one rank does not: 2 in each of 8 layers and both passes, r = 32 in a row. As
// a random walk again: √r u' for losses, and 4 √r u' for norms and of the way.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/plan/traffic.h"
#include "tests/train/mixed_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

const std::vector<std::string> kJobs{
    "packed r8 zero3 t2 p2 1f1b split:uniform m2 reduce:step wrap:size selective drop",
    "gpt r8 shard_grad_op t2 sp p2 zb_h1 split:names m8 keep:pass prefetch:3 wrap:none clip every_2 sharded",
    "packed r4 full_shard p4 zb_h2 m4 keep:step reduce:micro_batch prefetch:0 wrap:none clip every_2 ignore bf16",
    "gpt r4 shard_grad_op t2 p2 interleaved v2 m2 keep:pass reduce:micro_batch prefetch:0 wrap:size full ignore bf16",
    "mlp r8 full_shard t2 p2 interleaved v2 split:uniform m4 prefetch:3 wrap:names drop bf16 sharded",
    "gpt r8 shard_grad_op t4 sp p2 zb_v m4 keep:step full drop ignore bf16",
    "mlp r8 zero3 p4 zb_h1 m8 reduce:step prefetch:0 wrap:transformer clip bf16",
    "llama r4 full_shard p2 zb_v split:names m2 keep:use wrap:transformer clip every_2 sharded",
    "packed r2 full_shard p2 gpipe m4 keep:use reduce:micro_batch prefetch:3 selective ignore sharded",
    "packed r8 full_shard t4 p2 zb_h1 split:uniform m1 keep:step reduce:micro_batch prefetch:0 clip",
    "packed r8 zero2 p4 looped_bfs v1 split:names m8 wrap:size clip full drop sharded",
    "llama r8 full_shard t2 p4 zb_v split:uniform m4 keep:pass reduce:step prefetch:3 wrap:none selective",
    "gpt r4 ddp t2 sp p2 looped_bfs v1 split:names m4 wrap:names clip every_2 ignore bf16",
    "packed r8 zero3 t2 sp p4 1f1b split:names m4 keep:use reduce:micro_batch prefetch:0 clip selective ignore bf16 sharded",
    "gpt r4 shard_grad_op p4 zb_h2 split:uniform m8 keep:step reduce:step prefetch:3 wrap:names selective sharded",
    "mlp r8 ddp t4 p2 gpipe split:names m8 wrap:none clip drop",
    "gpt r8 hybrid2 p2 zb_h2 split:names m4 keep:use reduce:micro_batch bf16 sharded",
    "gpt r8 zero3 t4 sp p2 zb_h1 split:names m2 reduce:step prefetch:3 wrap:transformer every_2 drop ignore bf16 sharded",
    "mlp r2 zero3 p2 looped_bfs v2 split:uniform m8 keep:use wrap:transformer clip full drop bf16",
    "packed r8 zero1 t2 sp p2 zb_v split:uniform m4 wrap:names clip ignore sharded",
    "mlp r4 no_shard t4 sp m1 wrap:size bf16 sharded",
    "gpt r8 no_shard t2 p2 interleaved v2 split:names m8 wrap:transformer clip every_2 drop sharded",
    "llama r8 zero3 t2 p2 zb_h2 split:names m2 keep:step reduce:micro_batch prefetch:0 wrap:names full bf16 sharded",
    "packed r8 full_shard p4 gpipe m1 keep:pass reduce:step prefetch:3 wrap:names clip every_2 drop bf16 sharded",
    "llama r4 ddp p4 1f1b m1 clip selective bf16 sharded",
    "packed r8 hybrid4 m1 wrap:names selective drop ignore bf16 sharded",
    "mlp r8 hybrid2 p2 1f1b split:uniform m4 prefetch:3 clip every_2 bf16",
    "gpt r2 zero1 t2 m1 wrap:transformer clip every_2 drop bf16 sharded",
    "packed r8 hybrid2 p2 interleaved v2 split:uniform m2 keep:step reduce:micro_batch wrap:transformer selective drop",
    "packed r2 shard_grad_op p2 looped_bfs v1 m4 keep:step prefetch:0 wrap:none sharded",
    "mlp r8 shard_grad_op t4 p2 1f1b split:names m4 keep:pass reduce:micro_batch wrap:transformer clip bf16",
    "gpt r8 zero2 t2 sp p2 zb_h2 split:uniform m2 drop ignore",
    "llama r8 full_shard t2 sp p2 looped_bfs v2 split:uniform m4 reduce:step prefetch:3 wrap:size full bf16 sharded",
    "mlp r8 no_shard t2 p4 looped_bfs v1 split:names m4 clip selective drop",
    "llama r4 zero1 p4 1f1b split:names m4 wrap:none full bf16 sharded",
    "packed r8 hybrid2 t2 m1 keep:use reduce:step prefetch:0 wrap:none every_2 drop",
    "mlp r8 zero2 t2 p2 gpipe split:names m1 wrap:transformer clip every_2 bf16",
    "llama r2 no_shard p2 interleaved v2 split:names m2 wrap:size full sharded",
    "packed r2 ddp p2 zb_v split:names m8 wrap:size every_2 bf16 sharded",
    "mlp r2 zero1 p2 gpipe m2 wrap:size clip bf16",
    "llama r8 shard_grad_op t4 p2 zb_h2 split:names m2 keep:use wrap:size clip",
    "mlp r4 zero3 t2 sp p2 gpipe m8 keep:step prefetch:3 wrap:none full drop",
    "packed r4 zero2 t2 sp p2 interleaved v2 split:uniform m4 wrap:none selective bf16 sharded",
    "gpt r8 hybrid4 m1 keep:pass reduce:step wrap:names clip full",
    "gpt r4 ddp t2 sp p2 zb_h1 split:uniform m4 wrap:transformer full drop ignore bf16 sharded",
    "llama r2 zero3 p2 looped_bfs v2 split:names m8 keep:pass reduce:micro_batch prefetch:0 wrap:names clip every_2",
    "llama r8 hybrid2 p2 gpipe split:uniform m4 keep:pass reduce:step prefetch:0 wrap:size clip every_2 bf16",
    "gpt r8 shard_grad_op p4 zb_h1 m8 keep:use clip every_2 drop",
    "packed r8 no_shard t4 p2 zb_h1 m8 wrap:names clip selective drop bf16",
    "mlp r4 shard_grad_op m2 reduce:micro_batch wrap:none clip selective",
    "mlp r8 hybrid4 m1 keep:step reduce:micro_batch prefetch:3 wrap:transformer sharded",
    "llama r8 zero2 t2 p2 1f1b m8 wrap:names every_2",
    "packed r2 full_shard t2 sp m4 reduce:step drop sharded",
    "packed r4 no_shard t2 p2 gpipe split:uniform m8 wrap:none selective drop ignore",
    "mlp r4 ddp p4 zb_h2 split:names m2 clip every_2 bf16",
    "llama r8 zero1 t4 sp p2 interleaved v2 split:names m8 wrap:transformer clip selective bf16",
    "gpt r8 full_shard p4 interleaved v2 m8 keep:step reduce:step every_2 ignore bf16 sharded",
    "mlp r8 hybrid2 p2 zb_v m4 keep:use reduce:micro_batch prefetch:0 wrap:names clip every_2",
    "llama r8 zero1 p2 zb_h1 m4 every_2 sharded",
    "gpt r8 ddp p4 interleaved v2 m1 wrap:size drop bf16 sharded",
    "packed r8 zero3 t2 sp p2 zb_v m1 keep:use reduce:micro_batch prefetch:3 wrap:none drop bf16 sharded",
    "gpt r8 shard_grad_op p2 gpipe split:names m4 reduce:step prefetch:0 wrap:names",
    "packed r2 zero3 p2 zb_h2 m4 keep:pass reduce:step clip every_2 sharded",
    "gpt r8 hybrid4 m1 keep:use reduce:step prefetch:0 wrap:none clip every_2 ignore bf16",
    "gpt r8 no_shard t2 sp p2 1f1b m8 wrap:size clip sharded",
    "packed r4 hybrid2 m2 reduce:micro_batch prefetch:0 wrap:transformer full ignore sharded",
    "mlp r8 zero2 t2 sp p2 zb_h1 m4 wrap:size selective drop",
    "packed r8 zero1 t4 sp p2 looped_bfs v1 m8 wrap:none clip every_2 drop ignore",
    "mlp r8 full_shard p2 1f1b split:uniform m4 keep:step reduce:step prefetch:3 wrap:size drop",
    "mlp r4 zero1 t2 p2 zb_h2 split:names m4 wrap:transformer clip full drop sharded",
    "gpt r8 hybrid4 m2 keep:use reduce:micro_batch full ignore sharded",
    "llama r8 hybrid4 m2 reduce:micro_batch wrap:size clip bf16",
    "packed r8 zero3 t2 p2 interleaved v2 m8 keep:use reduce:step prefetch:0 every_2 sharded",
    "packed r2 ddp p2 1f1b split:uniform m4 wrap:none full drop ignore sharded",
    "mlp r2 zero2 m8 wrap:transformer clip selective bf16",
    "mlp r8 shard_grad_op p2 gpipe m1 keep:use reduce:step wrap:transformer drop sharded",
    "llama r8 no_shard p4 zb_h2 split:uniform m1 selective sharded",
    "gpt r8 no_shard t2 sp p2 zb_v split:names m4 wrap:transformer clip every_2 ignore sharded",
    "llama r8 hybrid2 p2 looped_bfs v1 split:names m2 keep:step reduce:step prefetch:0 wrap:size clip every_2 bf16 sharded",
    "gpt r4 zero3 p4 zb_v m4 prefetch:3 wrap:names ignore sharded",
    "mlp r8 zero2 t2 p2 zb_v m4 wrap:none clip selective bf16",
    "mlp r8 zero2 t4 m1 wrap:names sharded",
    "gpt r8 hybrid2 p2 zb_h2 m2 wrap:transformer every_2 drop bf16 sharded",
    "packed r2 zero3 p2 zb_h1 split:uniform m8 keep:use prefetch:3 wrap:size clip every_2 ignore",
    "mlp r8 hybrid2 t2 sp m1 keep:use wrap:size clip full drop bf16 sharded",
    "llama r4 zero2 p2 interleaved v2 split:uniform m8 wrap:names clip every_2 sharded",
    "llama r8 no_shard t2 sp p2 interleaved v2 split:uniform m4 clip full sharded",
    "llama r8 no_shard m1 wrap:none clip full bf16 sharded",
    "packed r8 shard_grad_op t2 p2 zb_h2 split:names m4 keep:use reduce:micro_batch prefetch:0 wrap:names full drop ignore sharded",
    "llama r4 ddp p2 zb_v m4 wrap:transformer full bf16",
    "packed r2 zero2 p2 interleaved v2 split:uniform m2 wrap:none ignore",
    "packed r2 no_shard m2 wrap:transformer every_2 drop ignore",
    "gpt r4 full_shard t2 m4 keep:pass wrap:size clip full drop sharded",
    "llama r8 zero1 p4 zb_v m8 wrap:size every_2 sharded",
    "gpt r2 shard_grad_op m4 keep:step prefetch:3 full drop",
    "gpt r8 full_shard t2 sp p2 looped_bfs v2 split:names m1 keep:step wrap:names drop sharded",
    "llama r8 shard_grad_op p2 interleaved v2 m4 keep:pass prefetch:3 wrap:none clip full bf16",
    "gpt r4 ddp t4 m2 wrap:transformer clip drop ignore bf16",
    "mlp r8 full_shard p4 1f1b split:uniform m4 reduce:micro_batch wrap:none sharded",
    "mlp r8 hybrid2 p2 zb_h1 split:names m4 keep:use reduce:micro_batch wrap:none clip full sharded",
    "llama r4 shard_grad_op t2 sp m1 keep:step prefetch:3 wrap:transformer clip every_2 sharded",
    "llama r8 ddp t2 sp p4 interleaved v2 m2 clip every_2 sharded",
    "gpt r4 no_shard t2 sp m2 wrap:none",
    "mlp r4 ddp p4 zb_h1 split:uniform m4 wrap:size drop bf16",
    "mlp r4 full_shard m2 keep:step reduce:step clip full drop",
    "llama r8 full_shard t2 m4 keep:use wrap:names full sharded",
    "packed r4 ddp t4 m8 wrap:names clip full drop sharded",
    "mlp r8 no_shard t4 m4 wrap:size clip bf16",
    "mlp r4 ddp t2 sp p2 zb_h2 split:names m4 wrap:size clip full bf16 sharded",
    "mlp r4 zero1 t2 m2 wrap:names clip full drop",
    "gpt r4 full_shard m1 keep:pass wrap:size clip full bf16",
    "packed r8 no_shard p4 zb_h2 split:names m4 wrap:transformer clip ignore",
    "packed r8 zero1 t2 m1 clip every_2 drop ignore sharded",
    "gpt r8 zero2 m2 clip every_2 ignore bf16 sharded",
    "packed r2 no_shard m8 wrap:size selective ignore sharded",
    "gpt r8 full_shard t2 m1 reduce:step wrap:size clip drop ignore sharded",
    "mlp r4 ddp t2 sp p2 zb_h1 split:uniform m2 wrap:names drop sharded",
    "mlp r4 ddp t2 p2 looped_bfs v2 m4 clip drop bf16 sharded",
    "gpt r8 ddp m2 wrap:none every_2 drop sharded",
    "packed r8 full_shard t2 p2 looped_bfs v1 split:uniform m8 keep:pass reduce:micro_batch wrap:names drop bf16 sharded",
    "mlp r4 ddp t2 sp m1 wrap:size full drop sharded",
    "mlp r4 ddp m4 wrap:transformer clip every_2 drop sharded",
    "llama r8 full_shard t2 p4 zb_h2 split:names m4 keep:step prefetch:3 wrap:none",
    "mlp r8 zero2 t2 sp p2 1f1b split:names m4 wrap:names clip every_2",
    "gpt r8 ddp t2 sp p2 zb_h2 m4 wrap:size every_2 ignore sharded",
    "llama r8 zero1 t2 sp p2 interleaved v2 m4 wrap:names clip bf16 sharded",
    "gpt r4 zero2 p2 1f1b m8 wrap:names full drop ignore bf16 sharded",
    "gpt r2 ddp t2 m2 clip every_2 drop ignore sharded",
    "mlp r8 ddp t4 p2 zb_v split:uniform m4 wrap:names clip full",
    "mlp r8 ddp p2 1f1b split:uniform m4 wrap:transformer",
    "packed r2 zero3 p2 zb_h1 split:uniform m8 keep:step prefetch:0 every_2",
    "gpt r4 no_shard p2 1f1b split:uniform m8 wrap:none ignore",
};

constexpr double kTerms = 128, kEps = 0.1, kWay = kMixedSteps * 1e-2;  // the way a weight goes: steps · lr
constexpr double kRoundings = 32;                                      // of partial sums, by every rank of a tensor axis
constexpr double kScored = 16;                                         // right answers are counted of so many, or of 8 times as many

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

Bounds bounds_of_bf16(const Trained& want, bool cuts_products) {
  const std::size_t steps = want.loss.size();
  const double u = kRoundoffBf16, walk = std::sqrt(kRoundings);
  const double loss = cuts_products ? walk * u : 2 * u, norm = cuts_products ? 4 * walk * u : 8 * u, weights = cuts_products ? 4 * walk * u : 16 * u;
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

bool cuts_products(const std::string& line) { return has_word(line, "t2") || has_word(line, "t4"); }

}  // namespace

TEST_CASE("every strategy trains as one rank does, in the memory and with the communication of its plan") {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  References references(jobs);
  int folder = 0;
  for (const std::string& line : kJobs) {
    CAPTURE(line);
    const Trained& want = references.of(alone(line));
    const LoadedJob loaded = jobs.load(line, "run" + std::to_string(folder++));
    const CompiledJob job = compiled(loaded);
    const Trained got = run(loaded, job);
    const bool bf16 = has_word(line, "bf16");
    check_same(got, want, bf16 ? bounds_of_bf16(want, cuts_products(line)) : bounds_of_f32(want));
    check_promises(job, got.report);
  }
}

TEST_CASE("a mixed job trains to the same bits twice") {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  for (const std::string line : {"gpt r4 zero3 t2 sp m2 clip selective drop ignore", "packed r4 ddp p4 zb_h1 m4 clip drop ignore", "llama r8 hybrid2 p2 1f1b m2 clip full bf16",
                                 "gpt r8 zero1 t2 p2 interleaved v2 m4 clip every_2 drop ignore bf16"}) {
    CAPTURE(line);
    const Trained first = run(jobs.load(line, "first")), second = run(jobs.load(line, "second"));
    CHECK(first.loss == second.loss);
    CHECK(first.grad_norm == second.grad_norm);
    CHECK(files_of(first.report.checkpoint).at("model.safetensors") == files_of(second.report.checkpoint).at("model.safetensors"));
    CHECK(files_of(first.report.checkpoint).at("optimizer.safetensors") == files_of(second.report.checkpoint).at("optimizer.safetensors"));
  }
}

TEST_CASE("every two features of strategies meet in the table of jobs") {
  CHECK(kJobs.size() >= 120);
  // Words that shut each other out are left aside: two of one kind, and what only sharded strategies or pipelines have.
  const std::vector<std::string> everywhere{"gpt", "llama", "packed", "mlp", "clip", "full", "selective", "every_2", "bf16", "sharded"};
  const std::vector<std::string> strategies{"ddp", "zero1", "zero2", "zero3", "full_shard", "shard_grad_op", "no_shard", "hybrid2", "sp", "t2", "t4", "p2", "p4",
                                            "gpipe", "1f1b", "interleaved", "looped_bfs", "zb_h1", "zb_h2", "zb_v", "keep:use", "keep:pass", "keep:step",
                                            "reduce:step", "reduce:micro_batch", "prefetch:0", "prefetch:3", "wrap:transformer", "wrap:size", "wrap:names", "wrap:none"};
  for (const std::string& one : everywhere)
    for (const std::string& other : strategies) {
      CAPTURE(one);
      CAPTURE(other);
      CHECK(std::any_of(kJobs.begin(), kJobs.end(), [&](const std::string& line) { return has_word(line, one) && has_word(line, other); }));
    }
}
