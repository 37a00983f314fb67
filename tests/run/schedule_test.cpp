// Events, waits and groups of plans for GPUs, worked out again here from the schedule alone: no order of the plan is
// lost, and no wait could be left out.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "engine/core/random.h"
#include "engine/run/group_splits.h"
#include "engine/run/stream_schedule.h"
#include "tests/plan/gpu_plans.h"

using namespace trainer;

namespace {

// ---- Replaying a schedule ----

// What a device that knows events and streams alone guarantees when an instruction starts.
struct Known {
  bool begun = false;  // it is after the program's beginning
  StreamClock ended;
};

void raise(Known& known, const Known& other) {
  known.begun = known.begun || other.begun;
  for (std::size_t s = 0; s < kNumStreams; ++s) known.ended[s] = std::max(known.ended[s], other.ended[s]);
}

// Orders of the plan that the schedule does not keep: numbers of places, and that behind the last for the end. Of what
// the run waits for, joins and forks, counted in this order, `without` is left out.
struct Replay {
  std::vector<std::int32_t> broken;
  std::int64_t waits = 0;  // in a run
};

Replay replay(const Program& program, const StreamSchedule& schedule, std::int64_t without = -1) {
  Replay result;
  std::int64_t counted = 0;
  const auto kept = [&] { return counted++ != without; };
  std::array<Known, kNumStreams> streams;
  const auto origin = static_cast<std::size_t>(schedule.origin);
  streams[origin].begun = true;
  for (std::size_t s = 0; s < kNumStreams; ++s)
    if (schedule.forked[s] && kept()) streams[s].begun = true;
  std::vector<Known> events(static_cast<std::size_t>(schedule.num_events));
  for_each_in_run(passes_of(program), [&](std::int32_t i, std::int32_t pass) {
    const Place place{i, pass};
    const Issued& issued = program.instructions[static_cast<std::size_t>(i)];
    Known& mine = streams[static_cast<std::size_t>(issued.stream)];
    for (const StreamSchedule::Wait& wait : schedule.waits(place)) {
      const Known& event = events[static_cast<std::size_t>(StreamSchedule::event_of(wait, pass))];
      REQUIRE(event.begun);  // it was recorded before
      if (kept()) raise(mine, event);
    }
    bool ordered = mine.begun;
    for (std::size_t s = 0; s < kNumStreams; ++s)
      ordered = ordered && mine.ended[s] >= awaited(program.loops, issued.after[s], i, pass);
    const std::int32_t number = number_of(program, place);
    if (!ordered) result.broken.push_back(number);
    mine.ended[static_cast<std::size_t>(issued.stream)] = number;
    if (const std::int32_t event = schedule.record(place); event >= 0) {
      events[static_cast<std::size_t>(event)] = mine;
      events[static_cast<std::size_t>(event)].begun = true;
    }
    return true;
  });
  for (std::int32_t event : schedule.joined)
    if (kept()) raise(streams[origin], events.at(static_cast<std::size_t>(event)));
  for (std::size_t s = 0; s < kNumStreams; ++s)
    if (streams[origin].ended[s] < streams[s].ended[s]) {
      result.broken.push_back(static_cast<std::int32_t>(program.length()));
      break;
    }
  result.waits = counted;
  return result;
}

// All waits of small schedules, and some of large ones.
void check_minimal(const Program& program, const StreamSchedule& schedule) {
  const std::int64_t all = replay(program, schedule).waits, step = std::max<std::int64_t>(1, all / 100);
  for (std::int64_t one = 0; one < all; one += step) {
    CAPTURE(one);
    CHECK_FALSE(replay(program, schedule, one).broken.empty());
  }
}

void check(const Program& program) {
  const StreamSchedule schedule = schedule_streams(program);
  for (const Issued& issued : program.instructions) REQUIRE(schedule.used[static_cast<std::size_t>(issued.stream)]);
  CHECK(replay(program, schedule).broken.empty());
  check_minimal(program, schedule);
  std::vector<bool> awaited(program.instructions.size());
  const auto note = [&](std::int32_t event) {
    for (const std::int32_t one : schedule.recorded)
      if (const auto [first, last] = schedule.events_of(one); first <= event && event <= last)
        awaited[static_cast<std::size_t>(one)] = true;
  };
  for_each_in_run(passes_of(program), [&](std::int32_t i, std::int32_t pass) {
    for (const StreamSchedule::Wait& wait : schedule.waits({i, pass})) note(StreamSchedule::event_of(wait, pass));
    return true;
  });
  for (std::int32_t event : schedule.joined) note(event);
  CHECK(std::count(awaited.begin(), awaited.end(), true) == std::ssize(schedule.recorded));
}

Program random_program(std::uint64_t seed, std::int64_t length, std::uint64_t num_streams) {
  std::uint64_t draws = 0;
  const auto below = [&](std::uint64_t bound) { return random_below(seed, 0, draws++, bound); };
  Program program;
  StreamClock last;
  for (std::int64_t i = 0; i < length; ++i) {
    Issued issued;
    const auto mine = static_cast<std::size_t>(below(num_streams));
    issued.stream = static_cast<Stream>(mine);
    for (std::size_t s = 0; s < kNumStreams; ++s) {
      if (s == mine || last[s] < 0 || below(3) != 0) continue;
      auto at = static_cast<std::size_t>(last[s]);  // or one of those before it there
      for (std::uint64_t back = below(4); back > 0 && at > 0; --back) {
        std::size_t before = at - 1;
        while (before > 0 && static_cast<std::size_t>(program.instructions[before].stream) != s) --before;
        if (static_cast<std::size_t>(program.instructions[before].stream) != s) break;
        at = before;
      }
      issued.after[s] = static_cast<std::int32_t>(at);
    }
    last[mine] = static_cast<std::int32_t>(i);
    program.instructions.push_back(issued);
  }
  return program;
}

}  // namespace

TEST_CASE("a schedule keeps every order of random programs, and without any one of its waits it would not") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    check(random_program(seed, static_cast<std::int64_t>(1 + seed % 40), 1 + seed % kNumStreams));
  }
}

TEST_CASE("a schedule keeps every order of plans of every strategy, and without any one of its waits it would not") {
  for (const tests::GpuCase& one : tests::gpu_cases()) {
    CAPTURE(one.text());
    const Plan plan = tests::gpu_plan(one);
    for (const Role& role : plan.roles)
      for (const Program& program : role.programs) {
        CAPTURE(std::string(name_of(program.kind)));
        check(program);
      }
  }
}

TEST_CASE("a program on one stream has no events, forks or joins, and an empty one no stream") {
  const StreamSchedule schedule = schedule_streams(random_program(1, 20, 1));
  CHECK(schedule.origin == Stream::compute);
  CHECK(schedule.num_waits() == 0);
  CHECK(schedule.num_events == 0);
  CHECK_FALSE(schedule.forks());
  const StreamSchedule nothing = schedule_streams({});
  CHECK(std::count(nothing.used.begin(), nothing.used.end(), true) == 0);
}

TEST_CASE("a program without computation begins and ends on a stream that it uses") {
  Program program;
  program.instructions = {
      {Stream::communication, Exchange{}, {}}, {Stream::copy, CopyOut{}, {-1, 0}}, {Stream::copy, CopyOut{}, {}}};
  const StreamSchedule schedule = schedule_streams(program);
  CHECK(schedule.origin == Stream::communication);
  CHECK_FALSE(schedule.forks());  // the copies wait for the exchange
  REQUIRE(schedule.waits({1, 0}).size() == 1);
  CHECK(StreamSchedule::event_of(schedule.waits({1, 0}).front(), 0) == 0);
  CHECK(schedule.waits({2, 0}).empty());
  CHECK(schedule.recorded == std::vector<std::int32_t>{0, 2});
  CHECK(schedule.joined == std::vector<std::int32_t>{1});
}

namespace {

struct Counts {
  std::int64_t instructions = 0, events = 0, waits = 0;
};

Counts counts_of(const Plan& plan) {
  Counts most;
  for (const Role& role : plan.roles) {
    const Program& step = *role.program(ProgramKind::step);
    const StreamSchedule schedule = schedule_streams(step);
    INFO("a step of ", step.instructions.size(), " instructions records ", schedule.num_events, " events and waits ",
         schedule.num_waits(), " times");
    most = {std::max(most.instructions, static_cast<std::int64_t>(step.instructions.size())),
            std::max(most.events, std::int64_t{schedule.num_events}), std::max(most.waits, schedule.num_waits())};
  }
  return most;
}

}  // namespace

TEST_CASE(
    "a step of GPT-2 124M has few events: on one rank for copies alone, under FSDP x tensor x pipeline one for every "
    "other instruction at most") {
  const Counts one = counts_of(tests::gpt2_124m_plan({"cluster.devices_per_node=1", "strategy=ddp"}));
  CHECK(one.events <= 8);
  CHECK(one.waits <= 10);
  const Counts many = counts_of(tests::gpt2_124m_plan(
      {"cluster.devices_per_node=8", "strategy={data: {kind: fsdp}, tensor: {degree: 2}, pipeline: {degree: 2}}"}));
  CHECK(2 * many.events < many.instructions);
  CHECK(2 * many.waits < many.instructions + 20);
}

// ---- Groups -------------------------------------------------------------------------------------------------------

namespace {

const std::vector<std::string> kLargeMeshes{
    "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 4}, tensor: {degree: 2}, pipeline: {degree: 4}}",
    "strategy={data: {kind: zero1}, pipeline: {degree: 4}}",
};

// What ncclCommSplit makes of what all ranks say, from the definition: of each color those that said it, by key.
std::map<int, std::vector<int>> groups_of(const Mesh& mesh, const GroupSplit& split) {
  std::map<int, std::vector<std::pair<int, int>>> said;
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    if (const SplitPart part = part_of(mesh, split, rank); part.color >= 0)
      said[part.color].push_back({part.key, rank});
  std::map<int, std::vector<int>> groups;
  for (auto& [color, members] : said) {
    std::sort(members.begin(), members.end());
    for (const auto& [key, rank] : members) groups[color].push_back(rank);
  }
  return groups;
}

// What one rank's executor issues on a communicator: for each, by its place in the list, "program kind dtype bytes" in
// order.
using IssuedOn = std::map<std::size_t, std::vector<std::string>>;

IssuedOn issued_by(const Plan& plan, const std::vector<GroupSplit>& splits, int rank) {
  IssuedOn issued_on;
  for (const Program& program : plan.role_of(rank).programs)
    for (const Issued& issued : program.instructions) {
      const auto* collective = std::get_if<Collective>(&issued.instruction);
      if (collective == nullptr) continue;
      const std::optional<GroupSplit> split = split_of(plan.mesh, *collective, issued.stream);
      if (!split) continue;
      const auto at = std::find(splits.begin(), splits.end(), *split);
      REQUIRE(at != splits.end());
      CHECK(issued.stream == split->stream);
      issued_on[static_cast<std::size_t>(at - splits.begin())].push_back(
          std::string(name_of(program.kind)) + " " + std::string(name_of(collective->kind)) + " " +
          std::string(name_of(collective->dtype)) + " " + std::to_string(collective->input.region.bytes));
    }
  return issued_on;
}

void check_groups(const Plan& plan) {
  const std::vector<GroupSplit> splits = group_splits(plan);
  for (const GroupSplit& split : splits)
    for (const auto& [color, members] : groups_of(plan.mesh, split)) {
      CHECK(members.size() > 1);
      for (int member : members) CHECK(members == plan.mesh.group(member, split.axes, split.stages));
    }
  // Every collective of every rank goes over the very ranks that the plan says, and its members issue alike on that
  // communicator.
  std::vector<IssuedOn> by_rank;
  for (int rank = 0; rank < plan.mesh.world_size(); ++rank) {
    by_rank.push_back(issued_by(plan, splits, rank));
    for (const Program& program : plan.role_of(rank).programs)
      for (const Issued& issued : program.instructions)
        if (const auto* collective = std::get_if<Collective>(&issued.instruction)) {
          const std::optional<GroupSplit> split = split_of(plan.mesh, *collective, issued.stream);
          const std::vector<int> members = plan.mesh.group(rank, collective->axes, collective->stages);
          REQUIRE(split.has_value() == (members.size() > 1));
          if (split) REQUIRE(groups_of(plan.mesh, *split).at(members.front()) == members);
        }
  }
  for (std::size_t at = 0; at < splits.size(); ++at)
    for (const auto& [color, members] : groups_of(plan.mesh, splits[at]))
      for (int member : members)
        CHECK(by_rank[static_cast<std::size_t>(member)][at] == by_rank[static_cast<std::size_t>(members.front())][at]);
}

}  // namespace

TEST_CASE(
    "splits give the groups of the mesh on every rank, and all members of a group issue the same on it in the same "
    "order") {
  for (const tests::GpuCase& one : tests::gpu_cases()) {
    CAPTURE(one.text());
    check_groups(tests::gpu_plan(one));
  }
  for (const std::string& strategy : kLargeMeshes) {
    CAPTURE(strategy);
    check_groups(tests::gpu_plan(
        {"gpt2",
         {"cluster={hardware: h100-sxm, nodes: 4}", strategy, "model.with.layers=4", "train.batch.global=32"}}));
  }
}

TEST_CASE("the list of splits is short, each entry once, and the same whatever role comes first") {
  Plan plan = tests::gpu_plan(
      {"gpt2",
       {"cluster.devices_per_node=8",
        "strategy={data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}, pipeline: {degree: 2}}"}});
  const std::vector<GroupSplit> splits = group_splits(plan);
  CHECK(splits.size() <= 8);
  for (std::size_t i = 0; i < splits.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(splits[i] == splits[j]);
  std::reverse(plan.roles.begin(), plan.roles.end());
  CHECK(group_splits(plan) == splits);
}

TEST_CASE("a rank whose stage does not take part says so, and groups of one rank are no groups") {
  const Mesh mesh{{Axis::pipeline, 4}, {Axis::shard, 2}};
  const GroupSplit ends{Axes::of(Axis::pipeline), {0, 3}, Stream::communication};
  CHECK(part_of(mesh, ends, 0).color == 0);
  CHECK(part_of(mesh, ends, 2).color == -1);
  CHECK(part_of(mesh, ends, 7).color == 1);
  CHECK(part_of(mesh, ends, 7).key == 7);
  Collective alone;
  alone.axes = Axes::of(Axis::tensor);
  CHECK_FALSE(split_of(mesh, alone, Stream::tensor));
  alone.axes = Axes::of(Axis::tensor) | Axes::of(Axis::shard);
  CHECK(split_of(mesh, alone, Stream::background)->axes == Axes::of(Axis::shard));
  alone.axes = Axes::of(Axis::pipeline);
  alone.stages = {0, 1, 2, 3};
  CHECK(split_of(mesh, alone, Stream::communication)->stages.empty());
}
