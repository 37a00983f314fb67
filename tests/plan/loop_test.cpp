// Plans with loops against the same plans with every micro-batch written out: each does the same, in the same order, in
// no more memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/cost/predict.h"
#include "engine/plan/loop.h"
#include "engine/plan/memory.h"
#include "engine/plan/verify/verify.h"
#include "tests/plan/golden_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

std::vector<GoldenJob> training_jobs() {
  std::vector<GoldenJob> jobs;
  for (const GoldenJob& job : golden_jobs())
    if (job.purpose == Purpose::train) jobs.push_back(longer(job, 256));
  return jobs;
}

const GoldenJob& golden(const std::string& name) {
  const auto found = std::ranges::find(golden_jobs(), name, &GoldenJob::name);
  REQUIRE(found != golden_jobs().end());
  return *found;
}

const Program& step_of(const Role& role) { return *role.program(ProgramKind::step); }

// What an instruction does, wherever its operands lie.
bool does_the_same(const Role& a, const Issued& one, const Role& b, const Issued& other) {
  if (one.stream != other.stream || !(one.why == other.why) || one.instruction.index() != other.instruction.index())
    return false;
  if (const auto* launch = std::get_if<Launch>(&one.instruction)) {
    const auto& like = std::get<Launch>(other.instruction);
    return a.signatures[static_cast<std::size_t>(launch->signature)] ==
               b.signatures[static_cast<std::size_t>(like.signature)] &&
           launch->origin == like.origin && a.name(launch->name) == b.name(like.name);
  }
  if (const auto* exchange = std::get_if<Exchange>(&one.instruction)) {
    const auto& like = std::get<Exchange>(other.instruction);
    const auto carry_the_same = [](const auto& x, const auto& y) {
      return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const auto& p, const auto& q) {
        return p.carried == q.carried && p.peer == q.peer && p.region.region.bytes == q.region.region.bytes;
      });
    };
    return carry_the_same(exchange->sends, like.sends) && carry_the_same(exchange->receives, like.receives);
  }
  return true;
}

std::string first_difference(const Plan& a, const Plan& b) {
  for (std::size_t stage = 0; stage < a.roles.size(); ++stage) {
    const auto &mine = step_of(a.roles[stage]).instructions, &theirs = step_of(b.roles[stage]).instructions;
    for (std::size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i)
      if (!does_the_same(a.roles[stage], mine[i], b.roles[stage], theirs[i]))
        return "role " + std::to_string(stage) + " #" + std::to_string(i) + ": " +
               print(a.roles[stage], mine[i].instruction) + " / " + print(b.roles[stage], theirs[i].instruction);
    if (mine.size() != theirs.size())
      return "role " + std::to_string(stage) + " has " + std::to_string(mine.size()) + " instructions and not " +
             std::to_string(theirs.size());
  }
  return "";
}

std::int64_t peak_of(const Plan& plan) {
  std::int64_t peak = 0;
  for (const Role& role : plan.roles) peak = std::max(peak, role.total_bytes);
  return peak;
}

struct Times {
  double step_us, without_input_us;  ///< the second without what the busiest role waits for the batch
};

Times times_of(const Plan& plan) {
  static const cost::MachineModel machine =
      cost::load_machine(std::string(TRAINER_SOURCE_DIR) + "/configs/hardware/h100-sxm.yaml");
  cost::Cluster cluster;
  cluster.machine = &machine;
  cluster.mesh = plan.mesh;
  cluster.ranks_per_node = 8;
  const cost::Prediction prediction = cost::predict(plan, cost::CostModel(cluster));
  return {prediction.step_us, prediction.step_us - prediction.roles[prediction.slowest].input_us};
}

}  // namespace

TEST_CASE("a plan with a loop does what the plan does that has every micro-batch written out") {
  int looping = 0;
  double worst_peak = 0, worst_time = 0, sum_peak = 0;
  for (const GoldenJob& job : training_jobs()) {
    CAPTURE(job.name);
    const Plan looped = golden_compiled(job).plan, listed = golden_compiled(job, false).plan;
    CHECK_FALSE(loops(listed));
    if (!loops(looped)) {
      CHECK(print(looped) == print(listed));
      continue;
    }
    ++looping;
    const Plan full = unrolled(looped);
    CHECK(first_difference(full, listed) == "");
    for (const std::string& found : violations(full)) FAIL_CHECK(found);
    for (const std::int32_t passes : {1, 2, 3, 4, 7})
      for (const std::string& found : violations(unrolled(looped, passes))) FAIL_CHECK(found);
    CHECK(print(parse_plan(print(looped))) == print(looped));
    const double peak = static_cast<double>(peak_of(looped)) / static_cast<double>(peak_of(listed));
    const Times ours = times_of(looped), theirs = times_of(listed);
    const double time = ours.without_input_us / theirs.without_input_us;
    // What several loops hand on to one another is not the same in every pass.
    const bool several = step_of(looped.roles[0]).loops.size() > 1;
    CHECK(ours.step_us == doctest::Approx(times_of(full).step_us).epsilon(several ? 1e-3 : 1e-9));
    // Rings are waited for less. A loop waits for the batch as a whole, and these batches are so small that each
    // micro-batch's part is a copy of its own. What is gathered again waits for its ring.
    const bool again = std::string_view(job.name).find("sequence_shard") != std::string_view::npos;
    CHECK(time < (again ? 1.015 : 1.01));
    CHECK(peak < 1.07);  // a part of a ring is nobody else's
    worst_peak = std::max(worst_peak, peak);
    worst_time = std::max(worst_time, time);
    sum_peak += peak;
  }
  MESSAGE(looping << " of " << training_jobs().size()
                  << " plans loop; peaks of those without loops: " << sum_peak / looping << " on average, at most "
                  << worst_peak << "; predicted times at most " << worst_time);
  CHECK(looping >= 58);
}

TEST_CASE("a longer step has the same list") {
  for (const std::string name :
       {"gpt2_1f1b_deep_cuda", "gpt2_zb_h1", "gpt2_zb_h2_tensor_cuda", "llama_zero3", "gpt2_3d_fsdp_sequence_cuda",
        "llama_gpipe", "gpt2_looped_bfs_zero3", "llama_3d_looped_bfs_zero2"}) {
    CAPTURE(name);
    GoldenJob wide = golden(name);  // a micro-batch fills aligned memory: else each is copied in by itself
    for (const char* key : {"model.with.context=128", "data.seq_len=128"})
      if (wide.model == "gpt2" || std::string(key).starts_with("data")) wide.overrides.emplace_back(key);
    const Plan some = golden_compiled(longer(wide, 512)).plan, many = golden_compiled(longer(wide, 8192)).plan;
    for (std::size_t stage = 0; stage < some.roles.size(); ++stage) {
      CHECK(step_of(some.roles[stage]).instructions.size() == step_of(many.roles[stage]).instructions.size());
      CHECK(step_of(some.roles[stage]).length() < step_of(many.roles[stage]).length());
    }
  }
}

TEST_CASE("where a plan fits only with every micro-batch written out, it has no loop") {
  const GoldenJob job = longer(golden("gpt2_zb_h1"), 256);
  const std::int64_t looped = peak_of(golden_compiled(job).plan), listed = peak_of(golden_compiled(job, false).plan);
  REQUIRE(listed < looped);
  const auto within = [&](std::int64_t limit) {
    GoldenJob limited = job;
    limited.overrides.push_back("cluster.memory_limit=" + std::to_string(limit));
    return golden_compiled(limited);
  };
  CHECK(loops(within(looped).plan));
  const CompiledJob list = within(listed);
  CHECK_FALSE(loops(list.plan));
  CHECK(list.fits);
  CHECK(violations(list.plan).empty());
  CHECK(loops(within(listed / 2).plan));  // neither fits
}

TEST_CASE("rings that take more than a list are for long steps, and do the same") {
  GoldenJob job = golden("llama_zb_v");
  for (const char* given :
       {"cluster.devices_per_node=4", "strategy.pipeline.degree=4", "model.with.layers=8", "data.seq_len=2048"})
    job.overrides.emplace_back(given);
  CHECK_FALSE(loops(golden_compiled(longer(job, 40)).plan));
  const GoldenJob longest = longer(job, 512);
  const Plan looped = golden_compiled(longest).plan, listed = golden_compiled(longest, false).plan;
  REQUIRE(loops(looped));
  const Plan full = unrolled(looped);
  CHECK(first_difference(full, listed) == "");
  CHECK(violations(full).empty());
  const double peak = static_cast<double>(peak_of(looped)) / static_cast<double>(peak_of(listed));
  MESSAGE("peak of the loop: " << peak);
  CHECK(peak > 1);
  CHECK(peak < 1.27);
}

TEST_CASE("a small last stage, whose rings take much more than its list, leaves a long step its loops") {
  GoldenJob job = golden("gpt2_1f1b_deep_cuda");
  for (const char* given : {"strategy.pipeline.split=[h.1, h.2, ln_f]", "model.with.layers=24", "model.with.vocab=64",
                            "model.with.context=256", "data.seq_len=256", "model.with.dim=128"})
    job.overrides.emplace_back(given);
  job.target = GoldenTarget::cpu;
  job = longer(job, 256);
  const Plan looped = golden_compiled(job).plan, listed = golden_compiled(job, false).plan;
  REQUIRE(loops(looped));
  CHECK(violations(looped).empty());
  const auto last = [](const Plan& plan) { return static_cast<double>(plan.roles.back().total_bytes); };
  CHECK(last(looped) > 1.05 * last(listed));
  CHECK(static_cast<double>(peak_of(looped)) < 1.05 * static_cast<double>(peak_of(listed)));
}

TEST_CASE("every schedule beside every sharded strategy makes long steps that are proved") {
  const std::set<std::string> of_chunks{"interleaved", "zb_v", "looped_bfs", "dualpipe_v"};
  for (const std::string schedule :
       {"gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "looped_bfs", "dualpipe_v"})
    for (const std::string data : {"zero1", "zero2", "zero3", "fsdp"})
      for (const int stages : {4, 8}) {
        CAPTURE(schedule);
        CAPTURE(data);
        CAPTURE(stages);
        GoldenJob job = golden("gpt2_zb_h1");
        job.target = GoldenTarget::cuda;
        job.overrides = {"cluster.devices_per_node=" + std::to_string(2 * stages), "model.with.layers=16",
                         "strategy={data: " + data + ", pipeline: {degree: " + std::to_string(stages) + ", schedule: " +
                             schedule + ", virtual_stages: " + (of_chunks.contains(schedule) ? "2}}" : "1}}")};
        CHECK_NOTHROW(golden_compiled(longer(job, 64)));
        if (schedule == "zb_h1" && data == "zero2") CHECK(loops(golden_compiled(longer(job, 512)).plan));
      }
}

// The last of 16 stages of zb_v holds 1.4 times as much in rings, and would be the fullest by 9%; of 8 it is not.
TEST_CASE("where rings that take much more than a list make a stage the fullest, a long step is a list") {
  for (const int stages : {8, 16}) {
    CAPTURE(stages);
    GoldenJob job = golden("llama_zb_v");
    for (const std::string& given :
         {"cluster.devices_per_node=" + std::to_string(stages), "strategy.pipeline.degree=" + std::to_string(stages),
          "model.with.layers=" + std::to_string(2 * stages), std::string("data.seq_len=2048")})
      job.overrides.emplace_back(given);
    job.target = GoldenTarget::cpu;
    CHECK(loops(golden_compiled(longer(job, 512)).plan) == (stages == 8));
  }
}

// ---- The proof bites ----------------------------------------------------------------------------------------------

namespace {

// One way to spoil a loop of a plan; false where it does not apply.
struct Mutation {
  std::string name;
  std::function<bool(Role&, Program&, std::size_t loop)> apply;
};

using Instructions = std::pair<std::size_t, std::size_t>;  // [first, second)

Instructions inside(const Program& program, std::size_t loop) {
  return {static_cast<std::size_t>(program.loops[loop].first), static_cast<std::size_t>(program.loops[loop].last)};
}
Instructions behind(const Program& program, std::size_t loop) {
  return {static_cast<std::size_t>(program.loops[loop].last), program.instructions.size()};
}
// Behind the loop before it, and before this one.
Instructions before(const Program& program, std::size_t loop) {
  return {loop == 0 ? 0 : static_cast<std::size_t>(program.loops[loop - 1].last),
          static_cast<std::size_t>(program.loops[loop].first)};
}

bool goes_around(const Role& role, const Region& region) {
  const Buffer& buffer = role.buffer(region.buffer);
  return buffer.stride > 0 && buffer.parts() > 1 && buffer.category != Category::inputs &&
         region.bytes <= buffer.stride;
}

// The first region of these instructions that goes around.
bool change_region(Role& role, Program& program, const Instructions& where,
                   const std::function<void(Region&, const Buffer&)>& how) {
  for (std::size_t i = where.first; i < where.second; ++i)
    if (auto* launch = std::get_if<Launch>(&program.instructions[i].instruction))
      for (Operand& operand : launch->operands) {
        if (!goes_around(role, region_of(operand))) continue;
        std::visit([&](auto& access) { how(access.region, role.buffer(access.region.buffer)); }, operand);
        return true;
      }
  return false;
}

// The first of these instructions that touches what goes around, and goes with `from`, goes with `to`.
bool change_loop(Role& role, Program& program, const Instructions& where, std::size_t from, std::size_t to) {
  for (std::size_t i = where.first; i < where.second; ++i) {
    Issued& issued = program.instructions[i];
    const auto* launch = std::get_if<Launch>(&issued.instruction);
    if (launch == nullptr || issued.why.loop != static_cast<std::int32_t>(from)) continue;
    if (std::ranges::none_of(launch->operands, [&](const Operand& one) { return goes_around(role, region_of(one)); }))
      continue;
    issued.why.loop = static_cast<std::int32_t>(to);
    return true;
  }
  return false;
}

bool change_message(Program& program, const Instructions& where) {
  for (std::size_t i = where.first; i < where.second && program.loops.size() > 1; ++i)
    if (auto* exchange = std::get_if<Exchange>(&program.instructions[i].instruction)) {
      std::int32_t& loop = exchange->sends.empty() ? exchange->receives[0].loop : exchange->sends[0].loop;
      loop = loop == 0 ? 1 : 0;
      return true;
    }
  return false;
}

bool change_rings(Role& role, const std::function<void(Buffer&)>& how) {
  bool any = false;
  for (Buffer& buffer : role.buffers)
    if (buffer.stride > 0 && buffer.parts() > 1 && buffer.category != Category::inputs) how(buffer), any = true;
  return any;
}

std::vector<Mutation> mutations() {
  const auto next = [](Region& region, const Buffer& ring) {
    region.offset = (region.offset / ring.stride + 1) % ring.parts() * ring.stride + region.offset % ring.stride;
  };
  const auto rings = [](auto how) {
    return [how](Role& role, Program&, std::size_t) { return change_rings(role, how); };
  };
  const auto loop_with = [](auto how) {
    return [how](Role&, Program& program, std::size_t loop) { return how(program.loops[loop]), true; };
  };
  const auto all_loops = [](auto how) {
    return [how](Role&, Program& program, std::size_t) {
      std::ranges::for_each(program.loops, how);
      return program.loops.size() > 1;
    };
  };
  return {
      {"a pass more", loop_with([](Loop& loop) { ++loop.times; })},
      {"a pass fewer", loop_with([](Loop& loop) { --loop.times; })},
      {"other micro-batches", loop_with([](Loop& loop) { ++loop.micro_batches; })},
      {"a pass more of every loop", all_loops([](Loop& loop) { ++loop.times; })},
      {"a pass fewer of every loop", all_loops([](Loop& loop) { --loop.times; })},
      {"other micro-batches in every loop", all_loops([](Loop& loop) { ++loop.micro_batches; })},
      {"begins earlier", loop_with([](Loop& loop) { --loop.first; })},
      {"begins later", loop_with([](Loop& loop) { ++loop.first; })},
      {"ends earlier", loop_with([](Loop& loop) { --loop.last; })},
      {"ends later", loop_with([](Loop& loop) { ++loop.last; })},
      {"ends twice as late", loop_with([](Loop& loop) { loop.last += loop.size() / 2; })},
      {"is missing",
       [](Role&, Program& program, std::size_t loop) {
         if (program.loops.size() == 1) return false;
         program.loops.erase(program.loops.begin() + static_cast<std::ptrdiff_t>(loop));
         return true;
       }},
      {"comes in another place",
       [](Role&, Program& program, std::size_t loop) {
         std::swap(program.loops[loop], program.loops[program.loops.size() - 1 - loop]);
         return program.loops.size() > 1;
       }},
      {"rings move on further", rings([](Buffer& ring) { ++ring.advance; })},
      {"rings stay", rings([](Buffer& ring) { ring.advance = 0; })},
      {"rings are shorter", rings([](Buffer& ring) { ring.bytes -= ring.stride; })},
      {"micro-batches share parts",
       [](Role& role, Program&, std::size_t) {
         bool any = false;
         for (Buffer& ring : role.buffers)
           if (ring.category != Category::inputs) any = std::exchange(ring.own_parts, false) || any;
         return any;
       }},
      {"another part in the loop",
       [next](Role& role, Program& program, std::size_t loop) {
         return change_region(role, program, inside(program, loop), next);
       }},
      {"another part behind the loop",
       [next](Role& role, Program& program, std::size_t loop) {
         return change_region(role, program, behind(program, loop), next);
       }},
      {"another part before the loop",
       [next](Role& role, Program& program, std::size_t loop) {
         return program.loops.size() > 1 && change_region(role, program, before(program, loop), next);
       }},
      {"between two parts",
       [](Role& role, Program& program, std::size_t loop) {
         return change_region(role, program, inside(program, loop),
                              [](Region& region, const Buffer& ring) { region.offset += ring.stride / 2 / 64 * 64; });
       }},
      {"goes with another loop inside",
       [](Role& role, Program& program, std::size_t loop) {
         return change_loop(role, program, inside(program, loop), loop, loop + 1);
       }},
      {"goes with another loop behind",
       [](Role& role, Program& program, std::size_t loop) {
         return program.loops.size() > 1 &&
                change_loop(role, program, behind(program, loop), loop, program.loops.size() - 1 - loop);
       }},
      {"goes with another loop before",
       [](Role& role, Program& program, std::size_t loop) {
         return program.loops.size() > 1 &&
                change_loop(role, program, before(program, loop), loop, program.loops.size() - 1 - loop);
       }},
      {"goes with a loop that is not there",
       [](Role& role, Program& program, std::size_t loop) {
         return change_loop(role, program, behind(program, loop), loop, program.loops.size());
       }},
      {"a message goes with another loop inside",
       [](Role&, Program& program, std::size_t loop) { return change_message(program, inside(program, loop)); }},
      {"a message goes with another loop behind",
       [](Role&, Program& program, std::size_t loop) { return change_message(program, behind(program, loop)); }},
      {"what the round before reads",
       [](Role&, Program& program, std::size_t index) {
         const Loop& loop = program.loops[index];
         for (std::int32_t i = loop.first; i < loop.last; ++i) {
           Issued &now = program.instructions[static_cast<std::size_t>(i)],
                  &before = program.instructions[static_cast<std::size_t>(i - loop.size())];
           if (now.instruction == before.instruction) continue;
           now.instruction = before.instruction;
           return true;
         }
         return false;
       }},
      {"an instruction fewer",
       [](Role&, Program& program, std::size_t index) {
         const Loop& loop = program.loops[index];
         program.instructions.erase(program.instructions.begin() + loop.first + loop.size() / 2);
         --program.loops[index].last;
         for (std::size_t later = index + 1; later < program.loops.size(); ++later)
           --program.loops[later].first, --program.loops[later].last;
         return true;
       }},
      {"no waits in the loop",
       [](Role&, Program& program, std::size_t index) {
         const Loop& loop = program.loops[index];
         bool any = false;
         for (std::int32_t i = loop.first; i < loop.last; ++i) {
           StreamClock& after = program.instructions[static_cast<std::size_t>(i)].after;
           any = any || !(after == StreamClock());
           after = {};
         }
         return any;
       }},
      {"waits of a pass earlier",
       [](Role&, Program& program, std::size_t index) {
         const Loop& loop = program.loops[index];
         bool any = false;
         for (std::int32_t i = loop.first; i < loop.last; ++i)
           for (std::int32_t& one : program.instructions[static_cast<std::size_t>(i)].after.at)
             if (one >= loop.size()) one -= loop.size(), any = true;
         return any;
       }},
  };
}

// The first and the last stage of a plan, and the first and the last of their loops.
std::vector<std::pair<std::size_t, std::size_t>> places_of(const Plan& plan) {
  std::vector<std::pair<std::size_t, std::size_t>> places;
  for (std::size_t stage = 0; stage < plan.roles.size(); stage += std::max<std::size_t>(plan.roles.size() - 1, 1)) {
    const std::size_t loops = step_of(plan.roles[stage]).loops.size();
    for (std::size_t loop = 0; loop < loops; loop += std::max<std::size_t>(loops - 1, 1))
      places.emplace_back(stage, loop);
  }
  return places;
}

}  // namespace

TEST_CASE("the proof refuses every loop that is not one") {
  int refused = 0, accepted = 0, skipped = 0;
  for (const GoldenJob& job : training_jobs()) {
    const Plan plan = golden_compiled(job).plan;
    if (!loops(plan)) continue;
    for (const Mutation& mutation : mutations())
      for (const auto& [stage, loop] : places_of(plan)) {
        Plan spoiled = plan;
        Role& role = spoiled.roles[stage];
        Program& program = role.programs[static_cast<std::size_t>(role.program_index(ProgramKind::step))];
        if (!mutation.apply(role, program, loop)) {
          ++skipped;
          continue;
        }
        const bool holds = violations(spoiled).empty();
        // A change after which the whole plan still holds, written out, is no mistake.
        if (holds && violations(unrolled(spoiled)).empty() &&
            first_difference(unrolled(spoiled), unrolled(plan)).empty()) {
          ++skipped;
          continue;
        }
        (holds ? accepted : refused) += 1;
        if (holds) MESSAGE(job.name << ", stage " << stage << ", loop " << loop << ": " << mutation.name);
        CHECK_FALSE(holds);
      }
  }
  MESSAGE(refused << " refused, " << accepted << " accepted, " << skipped << " that change nothing or do not apply");
  CHECK(refused >= 1100);
}
