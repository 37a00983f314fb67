// Plans whose update runs on the processor of a GPU's host: what moves is what the formula says, host and device hold
// what it says, and the proof names what goes wrong. That they train to the same bits is tests/cuda/executor_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "engine/compile/compile.h"
#include "kernels/cuda/target.h"
#include "tests/train/mixed_jobs.h"
#include "tests/train/spoiled_plan.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr std::int64_t kChunk = 1024;

Plan on_gpus(const MixedJobs& jobs, const std::string& line, const std::string& offload) {
  const LoadedJob loaded = jobs.load(line, "run", {"strategy.offload=" + offload});
  static const kernels::cuda::CudaTarget target(90, 132);
  Hardware hardware{.target = &target, .memory_bytes = std::int64_t{64} << 30};
  hardware.offload_chunk = kChunk;
  return compile(loaded, hardware, Purpose::train).plan;
}

std::int64_t moved(const Role& role, bool comes) {
  std::int64_t bytes = 0;
  for (const Issued& issued : role.program(ProgramKind::step)->instructions)
    if (const auto* move = std::get_if<Move>(&issued.instruction))
      if ((role.space_of(move->to.region) == Space::device) == comes) bytes += move->to.region.bytes;
  return bytes;
}

// Elements of the rank that are updated in a compute dtype.
std::int64_t updated(const Role& role, DType compute) {
  std::int64_t elements = 0;
  for (const Unit& unit : role.units)
    if (unit.trained() && unit.compute == compute) elements += unit.slice();
  return elements;
}

}  // namespace

TEST_CASE("gradients go to the host and working copies come from there, and the device holds no chunks") {
  const MixedJobs jobs;
  for (const std::string line : {"llama ddp m2 bf16", "gpt r2 ddp m2 clip bf16 excluded", "gpt r4 zero1 m2 clip",
                                 "llama r4 full_shard m2 clip bf16", "llama r2 p2 1f1b m4 clip bf16"}) {
    CAPTURE(line);
    const Plan plan = on_gpus(jobs, line, "{optimizer: host, update: host}"),
               there = on_gpus(jobs, line, "{optimizer: host}");
    for (std::size_t stage = 0; stage < plan.roles.size(); ++stage) {
      const Role &role = plan.roles[stage], &moving = there.roles[stage];
      const std::int64_t in_bf16 = updated(role, DType::bf16), in_f32 = updated(role, DType::f32);
      // Of a working copy in f32, the master: it goes with its gradient, unless it is sliced, and comes back.
      const std::int64_t scalars = 4 + 16 + 4;
      CHECK(moved(role, true) == 2 * in_bf16 + 4 * in_f32);
      CHECK(moved(role, false) == 4 * in_bf16 + 8 * in_f32 + scalars);
      CHECK(role.total_bytes <= moving.total_bytes);
      const auto staged = [&](std::string_view kind) {
        return std::ranges::count_if(role.buffers, [&](const Buffer& buffer) {
          return buffer.space == Space::host && role.name(buffer.name).starts_with(std::string(kind) + ".staged.");
        });
      };
      CHECK(staged("gradient") == 3);  // as many as chunks are there at a time
      CHECK(staged("working") <= 3);
      CHECK(staged("master") <= 3);
      CHECK((staged("working") > 0) == (in_bf16 > 0));
      CHECK((staged("master") > 0) == (in_f32 > 0));
    }
  }
}

TEST_CASE("gradients and weights that are on the host anyway do not move for an update there") {
  const MixedJobs jobs;
  for (const std::string line : {"llama full_shard m1 bf16", "llama r2 full_shard m1 clip"}) {
    CAPTURE(line);
    const Plan plan = on_gpus(jobs, line, "{optimizer: host, gradients: host, parameters: host, update: host}");
    const Role& role = plan.roles[0];
    const std::vector<Issued>& step = role.program(ProgramKind::step)->instructions;
    const auto update = std::ranges::find(step, Stream::host, &Issued::stream);
    REQUIRE(update != step.end());
    const auto moves = std::count_if(
        update, step.end(), [](const Issued& issued) { return std::holds_alternative<Move>(issued.instruction); });
    CHECK(moves == 0);
    CHECK(std::ranges::none_of(role.buffers, [&](const Buffer& buffer) {
      return role.name(buffer.name).find(".staged.") != std::string::npos;
    }));
  }
}

TEST_CASE("the proof names an update on the host of what is elsewhere, of other elements, or that does not return") {
  const MixedJobs jobs;
  const Plan right = on_gpus(jobs, "llama r2 ddp m1 bf16", "{optimizer: host, update: host}");
  REQUIRE(violations(right).empty());
  REQUIRE(print(parse_plan(print(right))) == print(right));
  // The n-th move of a kind: "gradient", or "working".
  const auto move_of = [](Plan& plan, std::string_view kind, int n) {
    std::vector<Issued>& step = step_of(plan);
    return std::ranges::find_if(step, [&, n](const Issued& one) mutable {
      const auto* move = std::get_if<Move>(&one.instruction);
      return move != nullptr && one.why.phase == Provenance::Phase::update &&
             plan.roles[0].name(move->name).ends_with("." + std::string(kind)) && n-- == 0;
    });
  };
  const auto update_of = [](Plan& plan, int n) {
    return std::ranges::find_if(step_of(plan),
                                [n](const Issued& one) mutable { return one.stream == Stream::host && n-- == 0; });
  };
  using Spoil = std::function<void(Plan&)>;
  for (const auto& [spoil, said] : std::vector<std::pair<Spoil, std::string>>{
           {[&](Plan& plan) { step_of(plan).erase(move_of(plan, "gradient", 4)); },
            "of other elements than it updates"},
           {[&](Plan& plan) { step_of(plan).erase(move_of(plan, "working", 1)); }, "has left out weights of"},
           {[&](Plan& plan) {
              auto& move = std::get<Move>(move_of(plan, "working", 1)->instruction);
              move.to.region.offset += 2 * move.to.region.bytes;
            },
            "brings to a place what is not the update of what lies there"},
           {[&](Plan& plan) {
              auto& move = std::get<Move>(move_of(plan, "gradient", 1)->instruction);
              move.from.region.offset = 0;
            },
            "takes the gradient of other elements than it updates"},
           {[&](Plan& plan) { update_of(plan, 1)->stream = Stream::compute; }, "touches what is off the device"},
           {[&](Plan& plan) {
              for (Operand& operand : std::get<Launch>(update_of(plan, 1)->instruction).operands)
                if (auto* read = std::get_if<Read>(&operand); read != nullptr && read->region.bytes == 16)
                  read->region = {plan.roles[0].scalars, 0, 16};
            },
            "runs on the host's processor and touches what is not in the host's memory"},
           {[&](Plan& plan) { move_of(plan, "working", 1)->stream = Stream::host; },
            "is no kernel, and runs on the host"},
           {[&](Plan& plan) {  // copies of the update before
              std::iter_swap(move_of(plan, "working", 3), update_of(plan, 3));
            },
            "brings to a place what is not the update of what lies there"}}) {
    const std::string text = refusal(right, spoil);
    CAPTURE(text);
    CAPTURE(said);
    CHECK(has(text, said));
  }
  // Order: a chunk's memory that is taken over while its update or its moves go on.
  for (const Stream stream : {Stream::fetch, Stream::store, Stream::host}) {
    CAPTURE(name_of(stream));
    const auto forget = [&](Plan& plan) {
      for (Issued& one : step_of(plan)) one.after[static_cast<std::size_t>(stream)] = -1;
    };
    CHECK(has(refusal(right, forget, false), "without waiting"));
  }
}
