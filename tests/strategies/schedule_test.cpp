// Pipeline schedules against their papers, over hundreds of (stages, virtual stages, micro-batches).
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "engine/job/pipeline_schedules.h"
#include "engine/plan/simulate.h"
#include "strategies/strategies.h"
#include "tests/strategies/sizes.h"

using namespace trainer;
using namespace trainer::strategies;

namespace {

using Kind = Action::Kind;

struct Case {
  Sizes sizes;
  Durations time;
  Schedule schedule;
  Simulation simulation;

  double forward() const { return time.forward * sizes.virtual_stages; }
  double input() const { return time.backward_input * sizes.virtual_stages; }
  double weight() const { return time.backward_weight * sizes.virtual_stages; }
  double work() const { return sizes.micro_batches * (forward() + input() + weight()); }
  double idle(int stage) const { return simulation.makespan - simulation.stages[static_cast<std::size_t>(stage)].busy; }
};

// A paper's promise: the time a stage idles in a step, and its most live chunks. `idle` may speak of the whole step or,
// where a schedule lets stages end one after another, of the time between a stage's first action and its last.
struct Promise {
  PipelineSchedule schedule;
  bool (*bubble_holds)(const Sizes&, const Durations&);  // which sizes and times the paper speaks of
  double (*idle)(const Case&);
  double (*measured)(const Case&);
  int (*live)(const Sizes&, int stage);
  bool live_is_exact;
};

double longest_idle(const Case& c) {
  double longest = 0;
  for (int stage = 0; stage < c.sizes.stages; ++stage) longest = std::max(longest, c.idle(stage));
  return longest;
}
double longest_waiting(const Case& c) {
  double longest = 0;
  for (const StageTimes& stage : c.simulation.stages) longest = std::max(longest, stage.waiting());
  return longest;
}

bool always(const Sizes&, const Durations&) { return true; }
bool filled(const Sizes& s, const Durations&) { return s.micro_batches >= s.stages; }
bool filled_twice(const Sizes& s, const Durations&) { return s.micro_batches >= 2 * s.stages - 1; }
bool filled_in_equal_slots(const Sizes& s, const Durations& time) {
  return s.micro_batches >= 2 * s.stages && time.forward == time.backward_input;
}

double flush_bubble(const Case& c) { return (c.sizes.stages - 1) * (c.forward() + c.input() + c.weight()); }
double looped_bubble(const Case& c) { return flush_bubble(c) / c.sizes.virtual_stages; }
double h1_bubble(const Case& c) { return (c.sizes.stages - 1) * (c.forward() + c.input() - c.weight()); }
double h2_bubble(const Case& c) { return (c.sizes.stages - 1) * (c.forward() + c.input() - 2 * c.weight()); }
double v_bubble(const Case& c) { return (c.sizes.stages - 1) * (c.input() - c.weight()); }
double dual_bubble(const Case& c) {
  return (c.sizes.stages - 1) * (c.time.forward + c.time.backward_input - c.time.backward_weight);
}

// Live chunks of interleaved 1F1B: Megatron's warm-up and one more. Groups are of p micro-batches, or larger where p
// does not divide m.
int interleaved_live(const Sizes& s, int stage) {
  const int groups = std::max(1, s.micro_batches / s.stages);
  const int group = (s.micro_batches + groups - 1) / groups;
  return std::min(s.micro_batches * s.virtual_stages, 2 * (s.stages - 1 - stage) + (s.virtual_stages - 1) * group + 1);
}

constexpr auto kAllLive = [](const Sizes& s, int) { return s.micro_batches * s.virtual_stages; };

// One row for each schedule.
const Promise kPromises[] = {
    {PipelineSchedule::gpipe, always, flush_bubble, longest_idle, kAllLive, true},
    {PipelineSchedule::one_f_one_b, always, flush_bubble, longest_idle,
     [](const Sizes& s, int stage) { return std::min(s.micro_batches, s.stages - stage); }, true},
    {PipelineSchedule::interleaved, filled, looped_bubble, longest_idle, interleaved_live, true},
    {PipelineSchedule::looped_bfs, filled, looped_bubble, longest_idle, kAllLive, true},
    {PipelineSchedule::zb_h1, filled, h1_bubble, longest_idle,
     [](const Sizes& s, int) { return std::min(s.micro_batches, s.stages); }, true},
    {PipelineSchedule::zb_h2, filled_twice, h2_bubble, longest_waiting,
     [](const Sizes& s, int) { return std::min(s.micro_batches, 2 * s.stages - 1); }, true},
    {PipelineSchedule::zb_v, filled_twice, v_bubble, longest_waiting,
     [](const Sizes& s, int) { return std::min(2 * s.micro_batches, 2 * s.stages); }, false},
    {PipelineSchedule::dualpipe_v, filled_in_equal_slots, dual_bubble, longest_idle,
     [](const Sizes& s, int) { return std::min(2 * s.micro_batches, 2 * s.stages + 1); }, false},
};

}  // namespace

TEST_CASE("every schedule runs each micro-batch through each chunk once, on the stage where the chunk lives") {
  check_all([](const PipelineEntry& entry, const Sizes& sizes, const Schedule& schedule) -> std::string {
    const int chunks = sizes.stages * sizes.virtual_stages;
    if (static_cast<int>(schedule.stage_of_chunk.size()) != chunks) return "wrong number of chunks";
    if (static_cast<int>(schedule.stages.size()) != sizes.stages) return "wrong number of stages";
    std::set<std::tuple<Kind, int, int>> seen;
    std::size_t listed = 0;
    for (int stage = 0; stage < sizes.stages; ++stage) {
      if (std::count(schedule.stage_of_chunk.begin(), schedule.stage_of_chunk.end(), stage) != sizes.virtual_stages)
        return "chunks unevenly laid";
      for (const Action& a : schedule.stages[static_cast<std::size_t>(stage)]) {
        if (a.chunk < 0 || a.chunk >= chunks || a.micro_batch < 0 || a.micro_batch >= sizes.micro_batches)
          return "an action of nothing";
        if (schedule.stage_of_chunk[static_cast<std::size_t>(a.chunk)] != stage)
          return label(a, true) + " runs where its chunk is not";
        if ((a.kind == Kind::backward) == entry.splits_backward && a.kind != Kind::forward)
          return label(a, true) + " is of the other sort of schedule";
        seen.insert({a.kind, a.micro_batch, a.chunk});
        ++listed;
      }
    }
    const std::size_t wanted = static_cast<std::size_t>(chunks * sizes.micro_batches) * (entry.splits_backward ? 3 : 2);
    return seen.size() == wanted && listed == wanted ? "" : "actions missing or repeated";
  });
}

TEST_CASE("no schedule deadlocks, and no action starts before its inputs") {
  check_all([](const PipelineEntry&, const Sizes&, const Schedule& schedule) -> std::string {
    const Simulation simulation =
        simulate(schedule, {.forward = 2, .backward_input = 3, .backward_weight = 1, .communication = 0.5});
    if (!simulation.deadlock.empty()) return simulation.deadlock;
    std::map<std::tuple<Kind, int, int>, double> ends;
    const auto kind_of_gradient = [](Kind kind) { return kind == Kind::backward ? Kind::backward_input : kind; };
    for (const StageTimes& stage : simulation.stages)
      for (const TimedAction& t : stage.actions)
        ends[{kind_of_gradient(t.action.kind), t.action.micro_batch, t.action.chunk}] = t.end;
    for (const StageTimes& stage : simulation.stages) {
      double free_at = 0;
      for (const TimedAction& t : stage.actions) {
        const auto [kind, micro_batch, chunk] = t.action;
        const auto late = [&](Kind input, int of, double hop) {
          return ends.at({input, micro_batch, of}) + hop > t.start;
        };
        const auto hop = [&](int of) {
          return schedule.stage_of_chunk[static_cast<std::size_t>(of)] ==
                         schedule.stage_of_chunk[static_cast<std::size_t>(chunk)]
                     ? 0
                     : 0.5;
        };
        const int last = static_cast<int>(schedule.stage_of_chunk.size()) - 1;
        bool bad = t.start < free_at;
        if (kind == Kind::forward)
          bad = bad || (chunk > 0 && late(Kind::forward, chunk - 1, hop(chunk - 1)));
        else
          bad = bad || late(Kind::forward, chunk, 0);
        if (kind == Kind::backward || kind == Kind::backward_input)
          bad = bad || (chunk < last && late(Kind::backward_input, chunk + 1, hop(chunk + 1)));
        if (kind == Kind::backward_weight) bad = bad || late(Kind::backward_input, chunk, 0);
        if (bad) return label(t.action, true) + " starts too early";
        free_at = t.end;
      }
    }
    return "";
  });
}

TEST_CASE("each chunk's gradients are added in the order of the micro-batches") {
  check_all([](const PipelineEntry&, const Sizes& sizes, const Schedule& schedule) -> std::string {
    std::vector<int> next(static_cast<std::size_t>(sizes.stages * sizes.virtual_stages));
    for (const auto& actions : schedule.stages)
      for (const Action& a : actions)
        if ((a.kind == Kind::backward || a.kind == Kind::backward_weight) &&
            a.micro_batch != next[static_cast<std::size_t>(a.chunk)]++)
          return label(a, true) + " out of order";
    return "";
  });
}

TEST_CASE("every schedule has its paper's promise") {
  for (const ScheduleRecord& record : kScheduleRecords) {
    CAPTURE(record.name);
    CHECK(std::ranges::count(kPromises, record.schedule, &Promise::schedule) == 1);
  }
}

TEST_CASE("bubbles are the papers'") {
  const Durations times[] = {{1, 1, 1}, {2, 2, 1}, {4, 5, 3}, {3, 3, 3}, {3, 4, 2}};
  for (const Promise& promise : kPromises) {
    const PipelineEntry& entry = pipeline_schedule(promise.schedule);
    int held = 0;
    for_each_size(entry, [&](const Sizes& sizes) {
      for (const Durations& time : times) {
        if (!promise.bubble_holds(sizes, time)) continue;
        Case c{sizes, time, entry.make(sizes.stages, sizes.virtual_stages, sizes.micro_batches), {}};
        c.simulation = simulate(c.schedule, time);
        // Whole numbers throughout, which doubles hold exactly.
        if (promise.measured(c) != promise.idle(c))
          FAIL_CHECK(text_of(name_of(promise.schedule), sizes)
                     << ": idle " << promise.measured(c) << ", promised " << promise.idle(c));
        ++held;
      }
    });
    CHECK(held > 200);
  }
}

TEST_CASE("DualPipe-V idles no longer than its authors' table says") {
  const PipelineEntry& entry = pipeline_schedule(PipelineSchedule::dualpipe_v);
  for_each_size(entry, [&](const Sizes& sizes) {
    for (const Durations& time : {Durations{4, 5, 3}, Durations{3, 4, 2}, Durations{2, 3, 2}}) {
      if (sizes.micro_batches < 2 * sizes.stages) continue;
      Case c{sizes, time, entry.make(sizes.stages, sizes.virtual_stages, sizes.micro_batches), {}};
      c.simulation = simulate(c.schedule, time);
      const double forward_and_backward = time.forward + time.backward_input + time.backward_weight;
      const double backward = time.backward_input + time.backward_weight;
      CHECK(longest_idle(c) <= (sizes.stages - 1) * (forward_and_backward + backward - 3 * time.backward_weight));
    }
  });
}

TEST_CASE("with as many micro-batches as stages, a zero-bubble step idles p - 1 slots") {
  for (int p : {1, 2, 3, 4, 6, 8, 16})
    for (int m = p; m < 3 * p; ++m)
      for (PipelineSchedule schedule : {PipelineSchedule::zb_h1, PipelineSchedule::zb_h2, PipelineSchedule::zb_v}) {
        const PipelineEntry& entry = pipeline_schedule(schedule);
        const Simulation simulation = simulate(entry.make(p, entry.least_virtual_stages, m));
        for (const StageTimes& stage : simulation.stages) CHECK(simulation.makespan - stage.busy == p - 1);
      }
}

TEST_CASE("live activations are the papers'") {
  for (const Promise& promise : kPromises) {
    const PipelineEntry& entry = pipeline_schedule(promise.schedule);
    for_each_size(entry, [&](const Sizes& sizes) {
      const Simulation simulation = simulate(entry.make(sizes.stages, sizes.virtual_stages, sizes.micro_batches));
      for (int stage = 0; stage < sizes.stages; ++stage) {
        const int live = simulation.stages[static_cast<std::size_t>(stage)].peak_activations;
        const int promised = promise.live(sizes, stage);
        if (live > promised || (promise.live_is_exact && live != promised))
          FAIL_CHECK(text_of(name_of(promise.schedule), sizes)
                     << ": stage " << stage << " holds " << live << ", promised " << promised);
      }
    });
  }
}

TEST_CASE("GPipe's and 1F1B's bubble is (p - 1)/(m + p - 1) of the step") {
  for (PipelineSchedule schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b})
    for (int p : {1, 2, 4, 8, 16})
      for (int m : {1, 4, 8, 64})
        CHECK(simulate(pipeline_schedule(schedule).make(p, 1, m)).bubble() ==
              doctest::Approx((p - 1.0) / (m + p - 1.0)));
}

TEST_CASE("1F1B of one stage is accumulation of gradients") {
  const Schedule schedule = pipeline_schedule(PipelineSchedule::one_f_one_b).make(1, 1, 3);
  CHECK(schedule.stages.size() == 1);
  std::vector<Action> wanted;
  for (int i = 0; i < 3; ++i) {
    wanted.push_back({Kind::forward, i, 0});
    wanted.push_back({Kind::backward, i, 0});
  }
  CHECK(schedule.stages[0] == wanted);
}

TEST_CASE("the V puts the model's first and last chunk on stage 0, loops go round") {
  CHECK(pipeline_schedule(PipelineSchedule::zb_v).make(3, 2, 4).stage_of_chunk == std::vector<int>{0, 1, 2, 2, 1, 0});
  CHECK(pipeline_schedule(PipelineSchedule::interleaved).make(3, 2, 4).stage_of_chunk ==
        std::vector<int>{0, 1, 2, 0, 1, 2});
  CHECK(pipeline_schedule(PipelineSchedule::looped_bfs).make(2, 3, 4).stage_of_chunk ==
        std::vector<int>{0, 1, 0, 1, 0, 1});
}

TEST_CASE("a schedule is refused with what would do") {
  CHECK(pipeline_schedule(PipelineSchedule::zb_v).refuses(4, 3, 8) == "zb_v with 3 virtual stages: it takes exactly 2");
  CHECK(pipeline_schedule(PipelineSchedule::interleaved).refuses(4, 1, 8) ==
        "interleaved with 1 virtual stages: it takes at least 2");
  CHECK(pipeline_schedule(PipelineSchedule::one_f_one_b).refuses(4, 2, 8) ==
        "1f1b with 2 virtual stages: it takes exactly 1");
  CHECK(pipeline_schedule(PipelineSchedule::one_f_one_b).refuses(0, 1, 8));
  CHECK(pipeline_schedule(PipelineSchedule::one_f_one_b).refuses(4, 1, 0));
  CHECK_FALSE(pipeline_schedule(PipelineSchedule::looped_bfs).refuses(4, 1, 1));
}

TEST_CASE("the simulation names who waits for whom") {
  const Schedule crossed{
      {0, 1}, {{{Kind::forward, 0, 0}, {Kind::backward, 0, 0}}, {{Kind::backward, 0, 1}, {Kind::forward, 0, 1}}}};
  CHECK(simulate(crossed).deadlock ==
        "stage 0 waits at its action 1, B0.0, for B0.1 of stage 1\nstage 1 waits at its action 0, B0.1, for F0.1 of "
        "stage 1\n");
}

TEST_CASE("communication delays what passes between stages, and chunks may differ in time") {
  const Schedule schedule = pipeline_schedule(PipelineSchedule::one_f_one_b).make(2, 1, 1);
  CHECK(simulate(schedule, {.communication = 10}).makespan == 6 + 2 * 10);
  CHECK(simulate(schedule, std::vector<Durations>{{1, 2, 3, 4}, {10, 20, 30, 40}}).makespan == 1 + 4 + 60 + 40 + 5);
}
