// Experts that a bias balances: ranks move it as one rank does, by the choices of the whole batch; it is saved, loaded,
// resharded and evaluated with; and it stays where nothing may move it. tests/models/expert_training_test.cpp compares
// it with a formula in PyTorch. Bounds and what they rest on: as experts_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/plan/verify/verify.h"
#include "tests/train/mixture_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr double kRate = 0.01;
const Overrides kBalanced{"model.with.balance=bias", "model.with.rate=0.01", "model.with.score=sigmoid",
                          "train.steps=12"};

std::vector<float> bias_of(const Trained& run, int layer) {
  return tensors_of(run.report.checkpoint).at("h." + std::to_string(layer) + ".gate.e_score_correction_bias");
}

std::string refused(const std::function<void()>& run) {
  try {
    run();
  } catch (const JobError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a bias starts at 0, and a step moves it by its rate, up or down, or leaves it where shares are equal") {
  const Jobs jobs;
  for (const double value : bias_of(jobs.train("none", both(kBalanced, {"train.steps=0"})), 0)) CHECK(value == 0);
  const Trained one = jobs.train("one", both(kBalanced, {"train.steps=1"}));
  int moved = 0;
  for (int layer = 0; layer < 4; ++layer)
    for (const float value : bias_of(one, layer)) {
      CHECK((value == 0 || std::abs(value) == static_cast<float>(kRate)));
      moved += value != 0 ? 1 : 0;
    }
  CHECK(moved >= 8);  // 8 samples of 8 tokens leave no layer's four experts equal
  CHECK(jobs.train("plain", {"model.with.score=sigmoid", "train.steps=1"}).loss == one.loss);
}

TEST_CASE("ranks move the bias as one rank does, by the choices of the whole batch") {
  const Jobs jobs;
  const Trained one = jobs.train("one", kBalanced);
  struct Line {
    int ranks;
    const char* strategy;
    Overrides more{};
  };
  int folder = 0;
  for (const Line& line : std::vector<Line>{
           {1, "ddp", {"train.batch.micro=2"}},
           {1, "ddp", {"train.batch.micro=1", "activation_checkpointing.mode=full"}},
           {1, "ddp", {"activation_checkpointing.mode=selective"}},
           {2, "ddp"},
           {4, "zero1", {"train.batch.micro=1"}},
           {2, "zero2"},
           {4, "fsdp"},
           {2, "fsdp", {"train.batch.micro=1"}},
           {4, "{data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}}"},
           {2, "tensor"},
           {2, "{tensor: {degree: 2, sequence_parallel: true}}"},
           {4, "{data: {kind: fsdp}, tensor: {degree: 2}}"},
           {2, "{context: {degree: 2}}"},
           {4, "{data: {kind: ddp}, context: {degree: 2}}"},
           {2, "{pipeline: {degree: 2, schedule: 1f1b}}", {"train.batch.micro=1"}},
           {2, "{pipeline: {degree: 2, schedule: interleaved, virtual_stages: 2}}", {"train.batch.micro=2"}},
           {2, "{pipeline: {degree: 2, schedule: dualpipe_v}}", {"train.batch.micro=1"}},
           {4, "{data: {kind: zero1}, pipeline: {degree: 2, schedule: gpipe}}", {"train.batch.micro=1"}},
       }) {
    CAPTURE(line.strategy);
    const Trained got =
        jobs.train("run" + std::to_string(folder++), on(line.ranks, line.strategy, both(kBalanced, line.more)));
    check_same(got, one, kBound);
    for (int layer = 0; layer < 4; ++layer) CHECK(bias_of(got, layer) == bias_of(one, layer));
  }
}

// Buffers have room for every choice: a choice without a row would not be counted.
TEST_CASE("ranks of experts move the bias as one rank does, and save it for others") {
  const Jobs jobs;
  const Overrides roomy = both(kBalanced, {"model.with.bound=4.0"});
  const Trained one = jobs.train("one", roomy);
  struct Line {
    int ranks;
    const char* strategy;
    Overrides more{};
  };
  int folder = 0;
  for (const Line& line : std::vector<Line>{
           {2, "{data: ddp, expert: {degree: 2}}"},
           {4, "{data: ddp, expert: {degree: 4}}", {"train.batch.micro=1"}},
           {4, "{data: zero1, expert: {degree: 2}}", {"train.batch.micro=1"}},
           {4, "{data: fsdp, expert: {degree: 4}}"},
           {4, "{data: fsdp, expert: {degree: 2}}", {"activation_checkpointing.mode=full"}},
           {4, "{data: ddp, expert: {degree: 2}, tensor: {degree: 2}}"},
           {4, "{data: zero1, expert: {degree: 2}, pipeline: {degree: 2, schedule: 1f1b}}", {"train.batch.micro=1"}},
       }) {
    CAPTURE(line.strategy);
    const Trained got =
        jobs.train("run" + std::to_string(folder++), on(line.ranks, line.strategy, both(roomy, line.more)));
    check_same_training(got, one, kBound);
    CHECK(got.dropped == std::vector<std::int64_t>(got.loss.size(), 0));
    for (int layer = 0; layer < 4; ++layer) CHECK(bias_of(got, layer) == bias_of(one, layer));
  }
}

TEST_CASE("a run that is stopped goes on with the bias it had, on other ranks too") {
  const Jobs jobs;
  const Overrides constant = both(kBalanced, {"train.lr_schedule={name: constant}"});
  const Trained whole = jobs.train("whole", constant);
  const auto resumed = [&](const std::string& folder, const Overrides& first, const Overrides& second) {
    jobs.train(folder, both(both(constant, first), {"train.steps=5", "checkpoint.format=sharded"}));
    return run(jobs.job(folder, both(both(constant, second), {"checkpoint.resume=auto"})));
  };
  for (const auto& [name, first, second] : std::vector<std::tuple<std::string, Overrides, Overrides>>{
           {"same", on(1, "ddp"), on(1, "ddp")},
           {"wider", on(1, "ddp"), on(4, "fsdp")},
           {"deeper", on(4, "fsdp"), on(2, "{pipeline: {degree: 2}}", {"train.batch.micro=2"})},
       }) {
    CAPTURE(name);
    const Trained got = resumed(name, first, second);
    CHECK(largest_difference(tensors_of(got.report.checkpoint), tensors_of(whole.report.checkpoint)) < kBound);
    for (int layer = 0; layer < 4; ++layer) CHECK(bias_of(got, layer) == bias_of(whole, layer));
  }
}

TEST_CASE("a rate of 0 and a frozen router leave the bias as it is") {
  const Jobs jobs;
  const Trained moved = jobs.train("moved", kBalanced);
  const auto from = [&](const std::string& folder, const Overrides& more) {
    return jobs.train(folder, both(both(kBalanced, {"model.init_from=" + moved.report.checkpoint}), more));
  };
  const Trained still = from("still", {"model.with.rate=0"}),
                frozen = from("frozen", {"trainable=[\"*.experts.*\", \"h.2.gate.weight\"]"});
  for (int layer = 0; layer < 4; ++layer) {
    CHECK(bias_of(still, layer) == bias_of(moved, layer));
    CHECK((bias_of(frozen, layer) == bias_of(moved, layer)) == (layer != 2));
  }
}

TEST_CASE("a bias that moves is of all ranks' choices, which ranks that train apart do not share") {
  const Jobs jobs;
  CHECK(contains(refused([&] { jobs.train("a", on(2, "local_sgd", kBalanced)); }), "e_score_correction_bias"));
  CHECK(jobs.train("b", on(2, "local_sgd", both(kBalanced, {"model.with.rate=0"}))).loss.size() == 12);
}

TEST_CASE("beside an adapter routers are frozen, and their biases are the base's") {
  const Jobs jobs;
  const Trained base = jobs.train("base", kBalanced);
  const Trained tuned = jobs.train(
      "tuned", both(kBalanced, {"adapter={kind: lora, rank: 2}", "model.init_from=" + base.report.checkpoint}));
  CHECK(tuned.loss.back() < base.loss.back());
  CHECK(!tensors_of(tuned.report.checkpoint).contains("h.0.gate.e_score_correction_bias"));
}

TEST_CASE("a plan that moves a bias by what one rank has counted is refused") {
  const Jobs jobs;
  for (const Overrides& where :
       {on(2, "ddp"), on(2, "{context: {degree: 2}}"), on(2, "{tensor: {degree: 2, sequence_parallel: true}}")}) {
    CAPTURE(where.back());
    Plan plan = compiled(jobs.job("plan", both(kBalanced, where))).plan;
    REQUIRE(violations(plan).empty());
    int moved = 0;
    for (Role& role : plan.roles)
      for (Program& program : role.programs)
        for (Issued& issued : program.instructions) {
          auto* const launch = std::get_if<Launch>(&issued.instruction);
          if (launch == nullptr) continue;
          const Signature& signature = role.signatures[static_cast<std::size_t>(launch->signature)];
          if (signature.op != Op::router_losses || !signature.attributes.has("balance")) continue;
          const std::string own = "h." + std::to_string(moved++) + ".gate.expert_counts";
          for (const State& state : role.states)
            if (state.name == own) launch->operands[0] = Update{state.region};
        }
    REQUIRE(moved == 4);
    const auto found = violations(plan);
    CHECK(std::ranges::any_of(
        found, [](const std::string& violation) { return contains(violation, "cannot work on what is"); }));
  }
}
