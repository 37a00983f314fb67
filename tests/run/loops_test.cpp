// What is prepared to run a program with a loop, against what is prepared for the same program written out: at every
// place the same kernel on the same addresses, and the same waits between streams; and no more of it for more passes.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/core/random.h"
#include "engine/plan/loop.h"
#include "engine/run/prepared_program.h"
#include "engine/run/stream_schedule.h"
#include "tests/plan/golden_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

// ---- Plans ----

// The plans of golden jobs whose steps of 256 samples have loops: every strategy, schedule, precision and device.
struct Looping {
  std::string name;
  Plan plan;
};
const std::vector<Looping>& looping_plans() {
  static const std::vector<Looping> plans = [] {
    std::vector<Looping> all;
    for (const GoldenJob& job : golden_jobs()) {
      if (job.purpose != Purpose::train) continue;
      Plan plan = golden_plan(longer(job, 256));
      if (loops(plan)) all.push_back({job.name, std::move(plan)});
    }
    return all;
  }();
  return plans;
}

struct Prepared {
  Prepared(const Plan& plan, int rank) {
    const Role& role = plan.role_of(rank);
    memory.reset(static_cast<std::byte*>(std::aligned_alloc(kBufferAlignment, kBufferAlignment)));
    kernels.resize(role.signatures.size());
    for (const Program& program : role.programs)
      programs.push_back(prepare_program(plan, rank, program, {memory.get(), kernels}, {memory.get(), kernels}));
  }
  std::int64_t offset(const void* address) const { return static_cast<const std::byte*>(address) - memory.get(); }
  std::size_t size() const {
    std::size_t sum = 0;
    for (const PreparedProgram& one : programs)
      sum += one.instructions.size() + one.addresses.size() + one.parts.size() + one.rings.size();
    return sum;
  }

  struct Free {
    void operator()(std::byte* at) const { std::free(at); }
  };
  std::unique_ptr<std::byte, Free> memory;  // only the begin is looked at
  std::vector<std::unique_ptr<kernels::Kernel>> kernels;
  std::vector<PreparedProgram> programs;
};

// What an instruction runs on: addresses from the memory's begin, peers, sizes, origin.
std::vector<std::int64_t> works_on(const Prepared& prepared, std::size_t program, std::size_t instruction,
                                   std::int32_t pass) {
  const PreparedProgram& of = prepared.programs[program];
  const PreparedInstruction& one = of.instructions[instruction];
  std::vector<std::int64_t> all{one.slice_bytes};
  if (one.exchanges()) {
    for (const auto parts : {of.sends(one), of.receives(one)})
      for (const Communicator::Part& part : parts)
        all.insert(all.end(), {part.peer, prepared.offset(part.data), part.bytes});
    return all;
  }
  const kernels::Call call = of.call(one, pass);
  for (const void* operand : call.operands) all.push_back(prepared.offset(operand));
  all.push_back(call.workspace == nullptr ? -1 : prepared.offset(call.workspace));
  all.push_back(call.origin);
  return all;
}

std::vector<int> ends_of_role(const Plan& plan, int stage) {
  std::vector<int> ranks;
  for (int rank = 0; rank < plan.mesh.world_size(); ++rank)
    if (plan.mesh.coordinates(rank)[static_cast<std::size_t>(Axis::pipeline)] == stage) ranks.push_back(rank);
  if (ranks.size() > 2) ranks = {ranks.front(), ranks.back()};
  return ranks;
}

// Places at which the program runs on something else than the one written out does. Of two runs: the second finds what
// the first left.
std::int64_t differences(Prepared& listed, const Prepared& whole, std::size_t index) {
  const Program& program = *listed.programs[index].program;
  REQUIRE(program.length() == std::ssize(whole.programs[index].instructions));
  std::int64_t differ = 0;
  for (int run = 0; run < 2; ++run)
    for_each_in_run(passes_of(program), [&](std::int32_t i, std::int32_t pass) {
      const std::int32_t number = number_of(program, {i, pass});
      REQUIRE(place_at(program, number) == Place{i, pass});
      PreparedProgram& of = listed.programs[index];
      of.enter(of.instructions[static_cast<std::size_t>(i)], pass);
      differ += works_on(listed, index, static_cast<std::size_t>(i), pass) !=
                works_on(whole, index, static_cast<std::size_t>(number), 0);
      return true;
    });
  return differ;
}

// ---- Waits ----

// What the instruction at each number of a run waits for, by number. An event is of what was recorded into it last.
std::vector<std::set<std::int32_t>> waits_of(const Program& program, const StreamSchedule& schedule) {
  std::vector<std::set<std::int32_t>> waits;
  std::map<std::int32_t, std::int32_t> recorded;
  for_each_in_run(passes_of(program), [&](std::int32_t i, std::int32_t pass) {
    std::set<std::int32_t>& mine = waits.emplace_back();
    for (const StreamSchedule::Wait& wait : schedule.waits({i, pass}))
      mine.insert(recorded.at(StreamSchedule::event_of(wait, pass)));
    if (const std::int32_t event = schedule.record({i, pass}); event >= 0)
      recorded[event] = number_of(program, {i, pass});
    return true;
  });
  std::set<std::int32_t>& end = waits.emplace_back();
  for (const std::int32_t event : schedule.joined) end.insert(recorded.at(event));
  return waits;
}

void check_waits(const Program& listed, const Program& full) {
  const StreamSchedule schedule = schedule_streams(listed), whole = schedule_streams(full);
  CHECK(schedule.origin == whole.origin);
  CHECK(schedule.forked == whole.forked);
  CHECK(waits_of(listed, schedule) == waits_of(full, whole));
}

// One loop after another: instructions before it, a round that the loop repeats, its first pass, and some behind; waits
// at most a round back, those of the round those of the loop.
Program random_loops(std::uint64_t seed, std::int32_t loops, std::int32_t times) {
  std::uint64_t draws = 0;
  const auto below = [&](std::int32_t bound) {
    return static_cast<std::int32_t>(random_below(seed, 0, draws++, static_cast<std::uint64_t>(bound)));
  };
  const std::int32_t streams = 1 + below(kNumStreams);
  Program program;
  const auto stream_of = [&](std::int32_t i) { return static_cast<std::size_t>(program.instructions[i].stream); };
  for (std::int32_t at = 0, loop = 0; loop < loops; ++loop) {
    const std::int32_t before = below(6), size = 1 + below(8), behind = below(6);
    const std::int32_t first = at + before + size, last = first + size;
    program.loops.push_back({first, last, times, 1});
    for (std::int32_t i = at; i < last + behind; ++i) {
      Issued issued;
      issued.instruction = Exchange{};
      issued.stream = static_cast<Stream>(below(streams));
      if (i >= first && i < last) issued.stream = program.instructions[static_cast<std::size_t>(i - size)].stream;
      program.instructions.push_back(issued);
    }
    at = last + behind;
  }
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(program.instructions.size()); ++i) {
    StreamClock& after = program.instructions[static_cast<std::size_t>(i)].after;
    if (const Loop* const loop = program.loop_at(i)) {
      // The round before the loop waits as the loop does, as far as it can look back.
      for (std::int32_t back = below(3); back > 0; --back) {
        const std::int32_t other = i - 1 - below(loop->size());
        if (other < 0 || stream_of(other) == stream_of(i)) continue;
        after[stream_of(other)] = std::max(after[stream_of(other)], other);
      }
      continue;
    }
    for (std::int32_t back = below(3); back > 0 && i > 0; --back) {
      const std::int32_t other = below(i);
      if (stream_of(other) != stream_of(i)) after[stream_of(other)] = std::max(after[stream_of(other)], other);
    }
  }
  return program;
}

Program written_out(const Program& program) {
  Role role;
  role.programs = {program};
  return unrolled(role).programs.front();
}

}  // namespace

TEST_CASE("at every place a program with loops runs on the addresses that it has written out") {
  CHECK(looping_plans().size() >= 58);
  for (const auto& [name, plan] : looping_plans()) {
    CAPTURE(name);
    const Plan full = unrolled(plan);
    for (int stage = 0; stage < static_cast<int>(plan.roles.size()); ++stage) {
      // The first and the last rank of a role: of other places in its groups.
      for (const int rank : ends_of_role(plan, stage)) {
        CAPTURE(rank);
        Prepared listed(plan, rank);
        const Prepared whole(full, rank);
        std::int64_t differ = 0;
        for (std::size_t p = 0; p < listed.programs.size(); ++p) differ += differences(listed, whole, p);
        CHECK(differ == 0);
      }
    }
  }
}

TEST_CASE("what is prepared does not grow with the passes of a loop") {
  for (const std::string name : {"gpt2_1f1b_deep_cuda", "gpt2_zb_h1", "gpt2_zb_h2_tensor_cuda", "llama_zero3",
                                 "llama_gpipe", "gpt2_looped_bfs_zero3"}) {
    CAPTURE(name);
    GoldenJob job = *std::ranges::find(golden_jobs(), name, &GoldenJob::name);
    // A micro-batch fills aligned memory: else each is copied in by itself.
    if (job.model == "gpt2") job.overrides.emplace_back("model.with.context=128");
    job.overrides.emplace_back("data.seq_len=128");
    const Plan some = golden_plan(longer(job, 512)), many = golden_plan(longer(job, 8192));
    for (int rank = 0; rank < some.mesh.world_size(); ++rank) {
      CHECK(Prepared(some, rank).size() == Prepared(many, rank).size());
      const auto scheduled = [&](const Plan& plan) {
        const StreamSchedule schedule = schedule_streams(*plan.role_of(rank).program(ProgramKind::step));
        return std::pair(schedule.num_events, schedule.num_waits());
      };
      CHECK(scheduled(some) == scheduled(many));
    }
  }
}

TEST_CASE("a loop waits at every place for what it waits for written out, on plans and on random programs") {
  for (const auto& [name, plan] : looping_plans()) {
    CAPTURE(name);
    const Plan full = unrolled(plan);
    for (std::size_t stage = 0; stage < plan.roles.size(); ++stage)
      for (std::size_t p = 0; p < plan.roles[stage].programs.size(); ++p)
        check_waits(plan.roles[stage].programs[p], full.roles[stage].programs[p]);
  }
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    const Program program =
        random_loops(seed, static_cast<std::int32_t>(1 + seed % 3), static_cast<std::int32_t>(2 + seed % 30));
    check_waits(program, written_out(program));
  }
}
