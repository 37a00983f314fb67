// Optimizer states in bf16 and int8, in whole trainings.
//
// The truth of an update is blockwise 8-bit Adam in f64, written here from the paper (Dettmers et al., "8-bit
// Optimizers via Block-wise Quantization", ICLR 2022) and kernels/state_codes.h; in bf16 it is Adam in f64, and what is
// kept is one of the two neighbours. It takes the gradients from the job itself: a step that goes on from a checkpoint
// with betas [0, 0] and f32 states saves them as its first moment.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "engine/core/compression.h"
#include "engine/core/error.h"
#include "engine/plan/traffic.h"
#include "tests/train/mixed_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

// ---- What is kept of a state, in f64 ----

std::vector<double> make_levels(bool has_sign) {
  std::vector<double> values{0, 1};
  for (int zeros = 0; zeros <= 6; ++zeros) {
    const double levels = std::pow(2, (has_sign ? 6 : 7) - zeros);
    for (int i = 0; i < levels; ++i) {
      const double value = std::pow(10, -zeros) * (0.1 + 0.9 * (i + 0.5) / levels);
      values.push_back(value);
      if (has_sign) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

const std::vector<double>& levels_of(bool has_sign) {
  static const std::vector<double> with_sign = make_levels(true), without = make_levels(false);
  return has_sign ? with_sign : without;
}

double farthest(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  double found = 0;
  for (std::size_t i = begin; i < end; ++i)
    if (std::fabs(values[i]) > std::fabs(found)) found = values[i];
  return found;
}

// A state as an update computes it, and by how much f32 may be off its sums.
struct State {
  bool has_sign;
  std::vector<double> exact, rounding;
};

// Whether `got` is one of the levels nearest to x times the scale.
bool is_nearest(double x, double rounding, double got, double scale, bool has_sign) {
  if (scale == 0) return got == 0;
  double least = std::numeric_limits<double>::infinity();
  for (double level : levels_of(has_sign))
    if (has_sign || x == 0 || level != 0) least = std::fmin(least, std::fabs(level * scale - x));
  return std::fabs(got - x) <= least + rounding + 0x1p-20 * std::fabs(x);
}

// Of a tensor that one rank holds whole, block by block.
int wrong_codes(const State& state, const std::vector<float>& got) {
  int wrong = 0;
  for (std::size_t begin = 0; begin < got.size(); begin += kInt8Block) {
    const std::size_t end = std::min(begin + kInt8Block, got.size());
    const double scale = farthest(state.exact, begin, end);
    for (std::size_t i = begin; i < end; ++i)
      wrong += !is_nearest(state.exact[i], state.rounding[i], static_cast<double>(got[i]), scale, state.has_sign);
  }
  return wrong;
}

// Of a tensor that is cut: blocks are those of parts, whose scales are at most the tensor's.
int far_off(const State& state, const std::vector<float>& got) {
  const double most = (state.has_sign ? 0.45 / 64 : 0.45 / 128) * std::fabs(farthest(state.exact, 0, got.size()));
  int wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) wrong += std::fabs(state.exact[i] - static_cast<double>(got[i])) > most;
  return wrong;
}

// Between two numbers of bf16 either is taken; on average the value itself.
struct Stochastic {
  int wrong = 0, count = 0;
  double sum = 0;  // of what rounding added, in distances between the two

  void add(const State& state, const std::vector<float>& got) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double x = state.exact[i], kept = static_cast<double>(got[i]);
      if (std::fabs(x) < 0x1p-100) continue;
      const double spacing = std::ldexp(1.0, std::ilogb(x) - 7);
      wrong += std::fabs(kept - x) > spacing + state.rounding[i] || std::bit_cast<std::uint32_t>(got[i]) % 0x10000 != 0;
      sum += (kept - x) / spacing;
      ++count;
    }
  }
};

// ---- A step of AdamW in f64, from checkpoint to checkpoint ----

constexpr double kLr = 1e-2, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-3, kDecay = 0.1;

struct Updated {
  State m{true, {}, {}}, v{false, {}, {}};
  std::vector<double> weights;
};

Updated adamw(const Tensors& before, const Tensors& gradients, const std::string& name, double t, bool decays) {
  const std::vector<float>&w = before.at(name), &g = gradients.at(name + ".exp_avg"),
        &m0 = before.at(name + ".exp_avg"), &v0 = before.at(name + ".exp_avg_sq");
  Updated after;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double gradient = static_cast<double>(g[i]), old = kBeta1 * static_cast<double>(m0[i]),
                 fresh = (1 - kBeta1) * gradient;
    const double m = old + fresh, v = kBeta2 * static_cast<double>(v0[i]) + (1 - kBeta2) * gradient * gradient;
    double weight = static_cast<double>(w[i]);
    if (decays) weight -= kLr * kDecay * weight;
    weight -= kLr / (1 - std::pow(kBeta1, t)) * m / (std::sqrt(v) / std::sqrt(1 - std::pow(kBeta2, t)) + kEps);
    after.m.exact.push_back(m);
    after.m.rounding.push_back(4 * kRoundoffF32 * (std::fabs(old) + std::fabs(fresh)));
    after.v.exact.push_back(v);
    after.v.rounding.push_back(4 * kRoundoffF32 * v);
    after.weights.push_back(weight);
  }
  return after;
}

int wrong_weights(const std::vector<double>& exact, const std::vector<float>& got) {
  int wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    wrong += std::fabs(static_cast<double>(got[i]) - exact[i]) > 8 * kRoundoffF32 * (std::fabs(exact[i]) + kLr * 30);
  return wrong;
}

const Overrides kAdamW{"train.optimizer={name: adamw, lr: 1.0e-2, betas: [0.9, 0.95], eps: 1.0e-3, weight_decay: 0.1}",
                       "train.lr_schedule=constant", "train.clip_norm=null", "model.with.dim=32"};

// ---- Sizes of a plan ----

std::int64_t bytes_of_states(const Role& role) {
  std::int64_t bytes = 0;
  for (std::size_t id = 0; id < role.buffers.size(); ++id)
    if (role.buffers[id].category == Category::optimizer && static_cast<BufferId>(id) != role.scalars &&
        static_cast<BufferId>(id) != role.applied)
      bytes += role.buffers[id].bytes;
  return bytes;
}

// Two states of each unit's slice: in int8 a byte an element and an f32 scale for each 256 of them.
std::int64_t expected_bytes(const Role& role, const std::string& states) {
  std::int64_t bytes = 0;
  for (const Unit& unit : role.units)
    bytes += 2 * (states == "bf16" ? 2 * unit.slice() : unit.slice() + unit.slice() / 256 * 4);
  return bytes;
}

}  // namespace

TEST_CASE("steps with states in int8 and bf16 are those of 8-bit AdamW and of AdamW in f64, under every strategy") {
  struct Case {
    const char* name;
    Overrides overrides;
    const char* states = "int8";
    bool cuts_tensors = false;
  };
  const std::vector<Case> cases{
      {"one", {}},
      {"ddp", {"cluster.devices_per_node=2", "strategy=ddp"}},
      {"zero1", {"cluster.devices_per_node=2", "strategy=zero1"}},
      {"zero2", {"cluster.devices_per_node=4", "strategy=zero2", "train.batch.micro=1"}},
      {"fsdp", {"cluster.devices_per_node=2", "strategy=fsdp"}},
      {"pipeline", {"cluster.devices_per_node=2", "strategy.pipeline.degree=2", "train.batch.micro=2"}},
      {"tensor", {"cluster.devices_per_node=2", "strategy.tensor={degree: 2, sequence_parallel: true}"}, "int8", true},
      {"one", {}, "bf16"},
      {"fsdp", {"cluster.devices_per_node=2", "strategy=fsdp"}, "bf16"},
      {"tensor", {"cluster.devices_per_node=2", "strategy.tensor={degree: 2, sequence_parallel: true}"}, "bf16", true},
  };
  for (const Case& one : cases) {
    CAPTURE(std::string(one.name));
    CAPTURE(std::string(one.states));
    const TinyJobs jobs;
    const Overrides common = both(kAdamW, one.overrides);
    constexpr int kSteps = 20;
    const Trained whole =
        run(jobs.load("gpt2", "run",
                      both(common, {"train.optimizer.states=" + std::string(one.states), "train.steps=20",
                                    "checkpoint.every=1", "checkpoint.keep=null"})));
    REQUIRE(whole.loss.size() == kSteps);
    CHECK(whole.loss.back() < whole.loss.front());
    Stochastic stochastic;
    for (int step = 1; step < kSteps; step += 3) {
      CAPTURE(step);
      const std::string at = jobs.path("run") + "/" + step_name(step), probe = "gradients" + std::to_string(step);
      copy_step(jobs, "run", step, probe);
      const Trained probed =
          run(jobs.load("gpt2", probe,
                        both(common, {"train.optimizer.betas=[0.0, 0.0]", "train.steps=" + std::to_string(step + 1)})));
      CHECK(probed.loss == std::vector<double>{whole.loss[static_cast<std::size_t>(step)]});
      const Tensors before = tensors_of(at), after = tensors_of(jobs.path("run") + "/" + step_name(step + 1)),
                    gradients = tensors_of(probed.report.checkpoint);
      for (const auto& [name, weights] : weights_of(at)) {
        CAPTURE(name);
        const bool decays = !name.ends_with(".bias") && name.find("ln_") == std::string::npos;
        const Updated exact = adamw(before, gradients, name, step + 1, decays);
        const std::vector<float>&m = after.at(name + ".exp_avg"), &v = after.at(name + ".exp_avg_sq");
        if (one.states == std::string("bf16")) {
          stochastic.add(exact.m, m);
          stochastic.add(exact.v, v);
        } else {
          CHECK((one.cuts_tensors ? far_off(exact.m, m) : wrong_codes(exact.m, m)) == 0);
          CHECK((one.cuts_tensors ? far_off(exact.v, v) : wrong_codes(exact.v, v)) == 0);
        }
        CHECK(wrong_weights(exact.weights, after.at(name)) == 0);
      }
    }
    if (one.states != std::string("bf16")) continue;
    CHECK(stochastic.wrong == 0);
    CHECK(stochastic.count > 10000);
    CHECK(std::fabs(stochastic.sum) < 5 * 0.5 * std::sqrt(stochastic.count));  // of a variance of 1/4 at most
  }
}

// A strategy changes the order of sums (equivalence_test.cpp: γ = 8 √n u a step, of n = 128 terms). Of states in int8
// whose blocks are those of one rank that changes a code here and there; where ranks have parts of a tensor, every
// state is rounded otherwise, by at most q = 0.45 / 64 of its block's largest, and in bf16 by at most q = 2^-8 of
// itself. Of thousands of independent errors a loss feels a small part.
TEST_CASE(
    "every strategy trains with states in int8 and bf16 as one rank does, in the memory of its plan and of the "
    "formula") {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  int folder = 0;
  constexpr std::size_t kSteps = 20;
  const double gamma = 8 * std::sqrt(128) * kRoundoffF32;
  for (const std::string states : {"int8", "bf16"}) {
    const Overrides more{"train.optimizer.states=" + states, "train.steps=20", "train.optimizer.eps=1.0e-3",
                         "train.optimizer.lr=2.0e-3"};
    std::map<std::string, Trained> references;
    for (const std::string line :
         {"gpt r2 ddp m2 clip", "gpt r4 zero1 m2 clip", "gpt r4 zero2 m2 clip", "llama r4 full_shard m2 clip",
          "gpt r2 t2 sp m2 clip", "llama r2 p2 1f1b m4 clip", "llama r4 zero1 c2 m2 clip", "gpt r4 zero1 t2 sp m2 clip",
          "llama r4 full_shard p2 1f1b m4 clip", "gpt r4 ddp t2 sp p2 1f1b m4 clip",
          "packed r8 zero2 t2 p2 1f1b m4 clip sharded"}) {
      CAPTURE(line);
      CAPTURE(states);
      const auto [at, fresh] = references.try_emplace(alone(line));
      if (fresh) at->second = run(jobs.load(alone(line), "alone" + std::to_string(folder++), more));
      const Trained& want = at->second;
      const LoadedJob loaded = jobs.load(line, "run" + std::to_string(folder++), more);
      const CompiledJob job = compiled(loaded);
      const Trained got = run(loaded, job);
      REQUIRE(got.loss.size() == kSteps);
      REQUIRE(want.loss.size() == kSteps);
      const bool same_blocks = states == "int8" && !has_word(line, "t2");
      const double q = states == "int8" ? 0.45 / 64 : 0x1p-8;
      for (std::size_t step = 0; step < kSteps; ++step) {
        CAPTURE(step);
        const double sums = static_cast<double>(step + 1) * gamma;
        CHECK(std::fabs(got.loss[step] / want.loss[step] - 1) < (same_blocks || step < 2 ? sums : sums + q / 16));
        CHECK(std::fabs(got.grad_norm[step] / want.grad_norm[step] - 1) < (same_blocks || step < 2 ? sums : sums + q));
      }
      const Mesh& mesh = job.plan.mesh;
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const auto stage = static_cast<std::size_t>(mesh.coordinates(rank)[static_cast<std::size_t>(Axis::pipeline)]);
        const RankReport& told = got.report.ranks[static_cast<std::size_t>(rank)];
        CHECK(told.allocated_bytes == told.planned_bytes);
        CHECK(told.planned_bytes == job.memory[stage].peak_bytes);
        CHECK(told.bytes_sent == static_cast<std::int64_t>(kSteps) * bytes_of(traffic_of(job.plan, stage)));
        CHECK(bytes_of_states(job.plan.roles[stage]) == expected_bytes(job.plan.roles[stage], states));
      }
    }
  }
}

TEST_CASE(
    "states take 1 1/64 bytes a parameter in int8, divided as those in f32 are; blocks begin with tensors and slices") {
  const MixedJobs jobs;
  for (const std::string line : {"llama r4 ddp m2", "llama r4 zero1 m2", "llama r8 full_shard m2 wrap:transformer",
                                 "gpt r8 zero2 t2 p2 1f1b m4", "llama r4 zero1 c2 m2"}) {
    CAPTURE(line);
    const CompiledJob job = compiled(jobs.load(line, "run", {"train.optimizer.states=int8"})),
                      f32 = compiled(jobs.load(line, "run"));
    for (std::size_t stage = 0; stage < job.plan.roles.size(); ++stage) {
      const Role &role = job.plan.roles[stage], &plain = f32.plan.roles[stage];
      std::int64_t padding = 0;
      for (const Unit& unit : role.units) {
        CHECK(unit.slice() % kInt8Block == 0);
        for (const UnitTensor& tensor : unit.tensors) CHECK(tensor.offset % kInt8Block == 0);
        padding += kInt8Block * static_cast<std::int64_t>(unit.tensors.size()) + kInt8Block;
      }
      const std::int64_t elements = bytes_of_states(plain) / 8;
      CHECK(bytes_of_states(role) >= 2 * elements + 2 * elements / 64);
      CHECK(bytes_of_states(role) <= 2 * (elements + padding) + 2 * (elements + padding) / 64);
    }
  }
}

TEST_CASE("a run with states in int8 or bf16 that is stopped and resumed has the bits of one that was not") {
  const Overrides sgd{"train.optimizer={name: sgd, lr: 0.05, momentum: 0.9}"},
      lion{"train.optimizer={name: lion, lr: 1.0e-3}"};
  struct Case {
    const char* name;
    Overrides overrides;
  };
  const std::vector<Case> cases{
      {"one", kAdamW},
      {"zero1", both(kAdamW, {"cluster.devices_per_node=2", "strategy=zero1"})},
      {"fsdp, sharded", both(kAdamW, {"cluster.devices_per_node=4", "strategy=fsdp", "train.batch.micro=1",
                                      "checkpoint.format=sharded"})},
      {"tensor", both(kAdamW, {"cluster.devices_per_node=2", "strategy.tensor={degree: 2, sequence_parallel: true}"})},
      {"tensor, sharded",
       both(kAdamW, {"cluster.devices_per_node=4", "strategy={data: {kind: zero1}, tensor: {degree: 2}}",
                     "checkpoint.format=sharded"})},
      {"pipeline, sgd", both(sgd, {"cluster.devices_per_node=2", "strategy.pipeline.degree=2", "train.batch.micro=2"})},
      {"ddp, lion", both(lion, {"cluster.devices_per_node=2", "strategy=ddp"})},
      {"a part of the model, zero2",
       both(kAdamW, {"cluster.devices_per_node=2", "strategy=zero2", "trainable=[\"h.1.*\", \"ln_f.*\"]"})},
      {"local_sgd with an outer optimizer",
       both(kAdamW, {"cluster.devices_per_node=2",
                     "strategy.data={kind: local_sgd, every: 2, outer: {lr: 0.7, momentum: 0.9}}"})},
  };
  for (const std::string states : {"int8", "bf16"})
    for (const Case& one : cases) {
      CAPTURE(std::string(one.name));
      CAPTURE(states);
      const TinyJobs jobs;
      const Overrides overrides = both(one.overrides, {"train.optimizer.states=" + states, "train.steps=12"});
      const Trained whole =
          run(jobs.load("gpt2", "whole", both(overrides, {"checkpoint.every=2", "checkpoint.keep=null"})));
      REQUIRE(whole.loss.size() == 12);
      for (int step : {2, 6, 10}) {
        CAPTURE(step);
        const std::string folder = "from" + std::to_string(step);
        copy_step(jobs, "whole", step, folder);
        const Trained resumed = run(jobs.load("gpt2", folder, overrides));
        CHECK(resumed.report.first_step == step);
        CHECK(resumed.loss == std::vector<double>(whole.loss.begin() + step, whole.loss.end()));
        CHECK(resumed.grad_norm == std::vector<double>(whole.grad_norm.begin() + step, whole.grad_norm.end()));
        CHECK(files_of(resumed.report.checkpoint) == files_of(whole.report.checkpoint));
      }
    }
}

TEST_CASE("states in int8 go on under other ranks and strategies, and become states in f32 and bf16 and come back") {
  const TinyJobs jobs;
  const Overrides common = both(kAdamW, {"train.steps=8", "checkpoint.every=4", "checkpoint.format=sharded"}),
                  int8{"train.optimizer.states=int8"}, longer{"train.steps=10"};
  const Trained whole = run(jobs.load("gpt2", "whole", both(both(common, int8), longer)));
  REQUIRE(whole.loss.size() == 10);
  struct Case {
    const char* name;
    Overrides overrides;
    double loss;  // relative
  };
  const double sums = 8 * std::sqrt(64) * kRoundoffF32 * 8, q = 0.45 / 64 / 16;
  const std::vector<Case> cases{
      {"fsdp4", both(int8, {"cluster.devices_per_node=4", "strategy=fsdp", "train.batch.micro=1"}), sums},
      {"pipeline2", both(int8, {"cluster.devices_per_node=2", "strategy.pipeline.degree=2", "train.batch.micro=2"}),
       sums},
      {"tensor2", both(int8, {"cluster.devices_per_node=2", "strategy.tensor={degree: 2}"}), sums + q},
      {"f32", {"train.optimizer.states=f32"}, sums + q},
      {"bf16", {"train.optimizer.states=bf16"}, sums + q},
  };
  for (const Case& one : cases) {
    CAPTURE(std::string(one.name));
    copy_step(jobs, "whole", 4, one.name);
    const Trained resumed = run(jobs.load("gpt2", one.name, both(common, one.overrides)));
    REQUIRE(resumed.loss.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) CHECK(std::fabs(resumed.loss[i] / whole.loss[i + 4] - 1) < one.loss);
    // And back to one rank and int8.
    const std::string back = std::string(one.name) + "-back";
    copy_step(jobs, one.name, 8, back);
    const Trained returned = run(jobs.load("gpt2", back, both(both(common, int8), longer)));
    REQUIRE(returned.loss.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) CHECK(std::fabs(returned.loss[i] / whole.loss[i + 8] - 1) < one.loss);
  }
}
