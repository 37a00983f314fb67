// Several streams of communication: which stands on which, what waits for what, and that the proof refuses another
// order.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "engine/plan/memory.h"
#include "engine/plan/verify/verify.h"
#include "tests/plan/full_play.h"
#include "tests/plan/proof_jobs.h"

namespace trainer::tests::proof_streams_test {
namespace {

bool on_background(const Issued& issued) { return issued.stream == Stream::background; }

// Where what stands on Stream::communication on a device with one is on a device with so many.
Stream expected(const Instruction& instruction, int streams) {
  const auto* collective = std::get_if<Collective>(&instruction);
  if (collective == nullptr || collective->axes.has(Axis::pipeline)) return Stream::communication;
  const bool of_layers = collective->axes == Axes::of(Axis::tensor) || collective->axes == Axes::of(Axis::context) ||
                         collective->axes == Axes::of(Axis::expert);
  if (streams > 1 && !of_layers && !collective->axes.has(Axis::tensor)) return Stream::background;
  return streams > 2 && of_layers ? Stream::tensor : Stream::communication;
}

const ProofCase kTensorAndFsdp{"llama",
                               {ranks(4), "strategy={data: {kind: fsdp, prefetch: 1}, tensor: {degree: 2}}",
                                "model.with.layers=4", "data.val=null"}};

}  // namespace

TEST_CASE(
    "what only the data axes do is in the background, then what layers ask for has its own stream, and all else is the "
    "same") {
  const ProofJobs jobs;
  for (std::size_t number = 0; number < 2 * plain_cases().size(); ++number) {
    const ProofCase& one = plain_cases()[number / 2];
    const int streams = 2 + static_cast<int>(number % 2);
    CAPTURE(one.text());
    CAPTURE(streams);
    const Plan plan = jobs.plan(one.model, one.overrides, streams), single = jobs.plan(one.model, one.overrides, 1);
    for (std::size_t stage = 0; stage < plan.roles.size(); ++stage) {
      CHECK(plan.roles[stage].buffers == single.roles[stage].buffers);  // memory does not know of it
      for (std::size_t index = 0; index < plan.roles[stage].programs.size(); ++index) {
        const std::vector<Issued>&program = plan.roles[stage].programs[index].instructions,
              &other = single.roles[stage].programs[index].instructions;
        REQUIRE(program.size() == other.size());
        for (std::size_t i = 0; i < program.size(); ++i) {
          CHECK(program[i].instruction == other[i].instruction);
          CHECK(program[i].stream ==
                (other[i].stream == Stream::communication ? expected(other[i].instruction, streams) : other[i].stream));
        }
      }
    }
  }
}

TEST_CASE("a sum over the tensor axis waits for no gather ahead of it") {
  const ProofJobs jobs;
  for (int streams : {2, 3}) {
    const Plan plan = jobs.plan(kTensorAndFsdp.model, kTensorAndFsdp.overrides, streams);
    const std::vector<Issued>& step = plan.roles[0].programs[0].instructions;
    int passed = 0;
    std::int32_t gather = -1;  // the last one issued
    for (std::size_t i = 0; i < step.size(); ++i) {
      const auto* collective = std::get_if<Collective>(&step[i].instruction);
      if (collective == nullptr) continue;
      if (collective->kind == CollectiveKind::all_gather && collective->axes.has(Axis::shard)) {
        gather = static_cast<std::int32_t>(i);
      } else if (collective->axes == Axes::of(Axis::tensor) && gather >= 0 &&
                 step[i].after[static_cast<std::size_t>(Stream::background)] < gather) {
        // Nor does the kernel that it waits for.
        const std::int32_t maker = step[i].after[static_cast<std::size_t>(Stream::compute)];
        REQUIRE(maker >= 0);
        passed +=
            step[static_cast<std::size_t>(maker)].after[static_cast<std::size_t>(Stream::background)] < gather ? 1 : 0;
      }
    }
    CHECK(passed >= 4 * 2);  // each layer's sums forward at least
  }
}

TEST_CASE("a layer's sums over the tensor axis wait for no message between stages that is issued before them") {
  const ProofJobs jobs;
  const Plan plan = jobs.plan("llama",
                              {ranks(4), "strategy={pipeline: {degree: 2}, tensor: {degree: 2}}", "model.with.layers=4",
                               "train.batch.micro=2", "data.val=null"},
                              3);
  for (const Role& role : plan.roles) {
    const std::vector<Issued>& step = role.programs[0].instructions;
    std::int32_t message = -1;
    int sums = 0, free = 0;
    for (std::size_t i = 0; i < step.size(); ++i) {
      if (std::holds_alternative<Exchange>(step[i].instruction)) message = static_cast<std::int32_t>(i);
      if (step[i].stream != Stream::tensor || message < 0) continue;
      ++sums;
      free += step[i].after[static_cast<std::size_t>(Stream::communication)] < message ? 1 : 0;
    }
    CHECK(sums > 0);
    CHECK(free == sums);  // it is the kernel before that waits, where it does
  }
}

TEST_CASE("what breaks the order of two streams is refused by name") {
  const ProofJobs jobs;
  const Plan right = jobs.plan(kTensorAndFsdp.model, kTensorAndFsdp.overrides, 2);
  const auto broken = [&](const Plan& from, const std::function<void(Plan&)>& how) {
    Plan plan = from;
    how(plan);
    for (Role& role : plan.roles) derive_order(role, plan.mesh);
    return violations(plan);
  };
  const auto first = [](Plan& plan, const std::function<bool(const Issued&)>& is) -> Issued& {
    std::vector<Issued>& step = plan.roles[0].programs[0].instructions;
    return *std::find_if(step.begin(), step.end(), is);
  };
  CHECK(violations(right).empty());
  CHECK(mentions(broken(right, [&](Plan& plan) { first(plan, on_background).stream = Stream::communication; }),
                 "is of a group that communicates on the communication stream too"));
  CHECK(mentions(broken(right, [&](Plan& plan) { first(plan, on_background).stream = Stream::copy; }),
                 "communicates off the communication stream"));
  const auto joins = [](const Issued& one) {
    const auto* collective = std::get_if<Collective>(&one.instruction);
    return collective != nullptr && collective->axes.has(Axis::pipeline);
  };
  CHECK(mentions(broken(right, [&](Plan& plan) { first(plan, joins).stream = Stream::background; }),
                 "joins stages on the background stream"));

  // Stages that wait for each other across the two streams.
  const Plan piped =
      jobs.plan("gpt2", {ranks(4), "strategy={data: {kind: fsdp}, pipeline: {degree: 2}}", "data.val=null"}, 2);
  CHECK(violations(piped).empty());
  CHECK(play_all_ranks(piped).empty());
  const auto exchanges = [](const Issued& one) { return std::holds_alternative<Exchange>(one.instruction); };
  CHECK(mentions(broken(piped, [&](Plan& plan) { first(plan, exchanges).stream = Stream::background; }),
                 "joins stages on the background stream"));
  const auto crossed = [&](Plan& plan) {
    std::vector<Issued>& step = plan.roles[0].programs[0].instructions;
    const auto message = std::find_if(step.begin(), step.end(), exchanges),
               count = std::find_if(step.begin(), step.end(), joins);
    REQUIRE(count < message);
    std::swap(message->instruction, count->instruction);
  };
  Plan stuck = piped;
  crossed(stuck);
  CHECK(!play_all_ranks(stuck).empty());
  CHECK(!broken(piped, crossed).empty());
}

}  // namespace trainer::tests::proof_streams_test
