// Stages advance in turn, each as far as it can, until none can: who waits then waits for ever. Times do not depend on
// the turns, for an action starts when its stage and its inputs are ready, whoever was asked first.
#include "engine/plan/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "engine/core/check.h"

namespace trainer {
namespace {

using Kind = Action::Kind;

class ScheduleSimulation {
 public:
  ScheduleSimulation(const Schedule& schedule, std::span<const Durations> durations)
      : schedule_(schedule), durations_(durations), num_chunks_(static_cast<int>(schedule.stage_of_chunk.size())) {
    CHECK(durations.size() == schedule.stage_of_chunk.size(), "durations of every chunk");
    int micro_batches = 0;
    for (const auto& actions : schedule.stages)
      for (const Action& action : actions) {
        CHECK(action.chunk >= 0 && action.chunk < num_chunks_ && action.micro_batch >= 0, "an action of no chunk");
        micro_batches = std::max(micro_batches, action.micro_batch + 1);
      }
    forwards_.resize(static_cast<std::size_t>(micro_batches) * schedule.stage_of_chunk.size());
    gradients_ = forwards_;
  }

  Simulation run() {
    Simulation result;
    result.stages.resize(schedule_.stages.size());
    for (std::size_t stage = 0; stage < result.stages.size(); ++stage)
      result.stages[stage].actions.reserve(schedule_.stages[stage].size());
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t stage = 0; stage < result.stages.size(); ++stage)
        while (step(static_cast<int>(stage), result.stages[stage])) moved = true;
    }
    for (std::size_t stage = 0; stage < result.stages.size(); ++stage) {
      StageTimes& times = result.stages[stage];
      if (!times.actions.empty()) result.makespan = std::max(result.makespan, times.actions.back().end);
      times.peak_activations = peak_activations(times.actions);
      if (const std::size_t at = times.actions.size(); at < schedule_.stages[stage].size())
        result.deadlock += fmt::format("stage {} waits at its action {}, {}, for {}\n", stage, at,
                                       label(schedule_.stages[stage][at], true), missing(schedule_.stages[stage][at]));
    }
    return result;
  }

 private:
  using Time = std::optional<double>;

  // Runs the stage's next action, if what it reads is made.
  bool step(int stage, StageTimes& times) {
    const auto& actions = schedule_.stages[static_cast<std::size_t>(stage)];
    if (times.actions.size() == actions.size()) return false;
    const Action& action = actions[times.actions.size()];
    double start = times.actions.empty() ? 0 : times.actions.back().end;
    for (const Action& input : inputs(action)) {
      const Time made = made_at(input);
      if (!made) return false;
      const int from = schedule_.stage_of_chunk[static_cast<std::size_t>(input.chunk)];
      start = std::max(start,
                       *made + (from == stage ? 0 : durations_[static_cast<std::size_t>(input.chunk)].communication));
    }
    const double end = start + duration(action);
    times.actions.push_back({action, start, end});
    times.busy += end - start;
    if (action.kind == Kind::forward) forwards_[index(action)] = end;
    if (action.kind == Kind::backward || action.kind == Kind::backward_input) gradients_[index(action)] = end;
    return true;
  }

  // Whose results an action reads; of a backward, the kind only names it: either kind makes the gradient of a chunk's
  // input.
  struct Inputs {
    std::array<Action, 2> actions;
    std::size_t count = 0;
    void add(const Action& action) { actions[count++] = action; }
    const Action* begin() const { return actions.data(); }
    const Action* end() const { return actions.data() + count; }
  };
  Inputs inputs(const Action& action) const {
    const auto [kind, micro_batch, chunk] = action;
    Inputs needed;
    if (kind == Kind::forward && chunk > 0) needed.add({Kind::forward, micro_batch, chunk - 1});
    if (kind == Kind::backward || kind == Kind::backward_input) {
      needed.add({Kind::forward, micro_batch, chunk});
      if (chunk + 1 < num_chunks_) needed.add({kind, micro_batch, chunk + 1});
    }
    if (kind == Kind::backward_weight) needed.add({Kind::backward_input, micro_batch, chunk});
    return needed;
  }

  Time made_at(const Action& action) const {
    return (action.kind == Kind::forward ? forwards_ : gradients_)[index(action)];
  }

  std::string missing(const Action& action) const {
    for (const Action& input : inputs(action))
      if (!made_at(input))
        return fmt::format("{} of stage {}", label(input, true),
                           schedule_.stage_of_chunk[static_cast<std::size_t>(input.chunk)]);
    return "nothing";
  }

  double duration(const Action& action) const {
    const Durations& of = durations_[static_cast<std::size_t>(action.chunk)];
    switch (action.kind) {
      case Kind::forward:
        return of.forward;
      case Kind::backward:
        return of.backward_input + of.backward_weight;
      case Kind::backward_input:
        return of.backward_input;
      case Kind::backward_weight:
        return of.backward_weight;
    }
    return 0;
  }

  std::size_t index(const Action& action) const {
    return static_cast<std::size_t>(action.micro_batch) * static_cast<std::size_t>(num_chunks_) +
           static_cast<std::size_t>(action.chunk);
  }

  static int peak_activations(const std::vector<TimedAction>& actions) {
    int live = 0;
    int peak = 0;
    for (const TimedAction& timed : actions) {
      if (timed.action.kind == Kind::forward) peak = std::max(peak, ++live);
      if (timed.action.kind == Kind::backward || timed.action.kind == Kind::backward_weight) --live;
    }
    return peak;
  }

  const Schedule& schedule_;
  std::span<const Durations> durations_;
  int num_chunks_;
  std::vector<Time> forwards_;   // by micro-batch and chunk: when the forward ended
  std::vector<Time> gradients_;  // when the gradient of the chunk's input was made
};

}  // namespace

Simulation simulate(const Schedule& schedule, std::span<const Durations> durations) {
  return ScheduleSimulation(schedule, durations).run();
}

Simulation simulate(const Schedule& schedule, const Durations& durations) {
  return simulate(schedule, std::vector<Durations>(schedule.stage_of_chunk.size(), durations));
}

double Simulation::bubble() const {
  double busy = 0;
  for (const StageTimes& stage : stages) busy += stage.busy;
  return makespan > 0 ? 1 - busy / (makespan * static_cast<double>(stages.size())) : 0;
}

std::string label(const Action& action, bool with_chunk) {
  constexpr std::string_view kLetters = "FBIW";
  const std::string text = fmt::format("{}{}", kLetters[static_cast<std::size_t>(action.kind)], action.micro_batch);
  return with_chunk ? fmt::format("{}.{}", text, action.chunk) : text;
}

}  // namespace trainer
