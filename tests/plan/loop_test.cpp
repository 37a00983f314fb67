// Plans with loops against the same plans with every micro-batch written out: each does the same, in the same order, in
// no more memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
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

double step_us(const Plan& plan) {
  static const cost::MachineModel machine =
      cost::load_machine(std::string(TRAINER_SOURCE_DIR) + "/configs/hardware/h100-sxm.yaml");
  cost::Cluster cluster;
  cluster.machine = &machine;
  cluster.mesh = plan.mesh;
  cluster.ranks_per_node = 8;
  return cost::predict(plan, cost::CostModel(cluster)).step_us;
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
    const double predicted = step_us(looped), time = predicted / step_us(listed);
    CHECK(predicted == doctest::Approx(step_us(full)).epsilon(1e-9));
    CHECK(time < 1.01);  // rings are waited for less
    CHECK(peak < 1.07);  // a part of a ring is nobody else's
    worst_peak = std::max(worst_peak, peak);
    worst_time = std::max(worst_time, time);
    sum_peak += peak;
  }
  MESSAGE(looping << " of " << training_jobs().size()
                  << " plans loop; peaks of those without loops: " << sum_peak / looping << " on average, at most "
                  << worst_peak << "; predicted times at most " << worst_time);
  CHECK(looping >= 55);
}

TEST_CASE("a longer step has the same list") {
  for (const std::string name :
       {"gpt2_1f1b_deep_cuda", "gpt2_zb_h1", "gpt2_zb_h2_tensor_cuda", "llama_zero3", "gpt2_3d_fsdp_sequence_cuda"}) {
    CAPTURE(name);
    const auto job = std::ranges::find(golden_jobs(), name, &GoldenJob::name);
    REQUIRE(job != golden_jobs().end());
    GoldenJob wide = *job;  // a micro-batch fills aligned memory: else each is copied in by itself
    for (const char* key : {"model.with.context=128", "data.seq_len=128"})
      if (job->model == "gpt2" || std::string(key).starts_with("data")) wide.overrides.emplace_back(key);
    const Plan some = golden_compiled(longer(wide, 512)).plan, many = golden_compiled(longer(wide, 8192)).plan;
    for (std::size_t stage = 0; stage < some.roles.size(); ++stage) {
      CHECK(step_of(some.roles[stage]).instructions.size() == step_of(many.roles[stage]).instructions.size());
      CHECK(step_of(some.roles[stage]).length() < step_of(many.roles[stage]).length());
    }
  }
}

// ---- The proof bites
// -------------------------------------------------------------------------------------------------

namespace {

// One way to spoil a plan's loop; false where it does not apply.
struct Mutation {
  std::string name;
  std::function<bool(Role&, Program&)> apply;
};

// The first region of an instruction of the loop, or behind it, that goes around.
bool change_region(Role& role, Program& program, bool in_loop, const std::function<void(Region&, const Buffer&)>& how) {
  const auto first = static_cast<std::size_t>(in_loop ? program.loop.first : program.loop.last),
             last = in_loop ? static_cast<std::size_t>(program.loop.last) : program.instructions.size();
  for (std::size_t i = first; i < last; ++i)
    if (auto* launch = std::get_if<Launch>(&program.instructions[i].instruction))
      for (Operand& operand : launch->operands) {
        const Region& region = region_of(operand);
        const Buffer& buffer = role.buffer(region.buffer);
        if (buffer.stride == 0 || buffer.parts() < 2 || buffer.category == Category::inputs ||
            region.bytes > buffer.stride)
          continue;
        std::visit([&](auto& access) { how(access.region, buffer); }, operand);
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
  const auto ring_behind = [](auto how) { return [how](Role& role, Program&) { return change_rings(role, how); }; };
  return {
      {"a pass more", [](Role&, Program& program) { return ++program.loop.times, true; }},
      {"a pass fewer", [](Role&, Program& program) { return --program.loop.times, true; }},
      {"other micro-batches", [](Role&, Program& program) { return ++program.loop.micro_batches, true; }},
      {"begins earlier", [](Role&, Program& program) { return --program.loop.first, true; }},
      {"begins later", [](Role&, Program& program) { return ++program.loop.first, true; }},
      {"ends earlier", [](Role&, Program& program) { return --program.loop.last, true; }},
      {"ends later", [](Role&, Program& program) { return ++program.loop.last, true; }},
      {"ends twice as late",
       [](Role&, Program& program) { return program.loop.last += program.loop.size() / 2, true; }},
      {"rings move on further", ring_behind([](Buffer& ring) { ++ring.advance; })},
      {"rings stay", ring_behind([](Buffer& ring) { ring.advance = 0; })},
      {"rings are shorter", ring_behind([](Buffer& ring) { ring.bytes -= ring.stride; })},
      {"another part in the loop",
       [next](Role& role, Program& program) { return change_region(role, program, true, next); }},
      {"another part behind the loop",
       [next](Role& role, Program& program) { return change_region(role, program, false, next); }},
      {"between two parts",
       [](Role& role, Program& program) {
         return change_region(role, program, true,
                              [](Region& region, const Buffer& ring) { region.offset += ring.stride / 2 / 64 * 64; });
       }},
      {"what the round before reads",
       [](Role&, Program& program) {
         const Loop& loop = program.loop;
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
       [](Role&, Program& program) {
         program.instructions.erase(program.instructions.begin() + program.loop.first + program.loop.size() / 2);
         --program.loop.last;
         return true;
       }},
      {"no waits in the loop",
       [](Role&, Program& program) {
         bool any = false;
         for (std::int32_t i = program.loop.first; i < program.loop.last; ++i) {
           StreamClock& after = program.instructions[static_cast<std::size_t>(i)].after;
           any = any || !(after == StreamClock());
           after = {};
         }
         return any;
       }},
      {"waits of a pass earlier",
       [](Role&, Program& program) {
         bool any = false;
         for (std::int32_t i = program.loop.first; i < program.loop.last; ++i)
           for (std::int32_t& one : program.instructions[static_cast<std::size_t>(i)].after.at)
             if (one >= program.loop.size()) one -= program.loop.size(), any = true;
         return any;
       }},
  };
}

}  // namespace

TEST_CASE("the proof refuses every loop that is not one") {
  int refused = 0, accepted = 0, skipped = 0;
  for (const GoldenJob& job : training_jobs()) {
    const Plan plan = golden_compiled(job).plan;
    if (!loops(plan)) continue;
    for (const Mutation& mutation : mutations())
      for (const std::size_t stage : {std::size_t{0}, plan.roles.size() - 1}) {
        Plan spoiled = plan;
        Role& role = spoiled.roles[stage];
        Program& program = role.programs[static_cast<std::size_t>(role.program_index(ProgramKind::step))];
        if (!program.loops() || !mutation.apply(role, program)) {
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
        if (holds) MESSAGE(job.name << ", stage " << stage << ": " << mutation.name);
        CHECK_FALSE(holds);
        if (plan.roles.size() == 1) break;
      }
  }
  MESSAGE(refused << " refused, " << accepted << " accepted, " << skipped << " that change nothing or do not apply");
  CHECK(refused >= 500);
}
