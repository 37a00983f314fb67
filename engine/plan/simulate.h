// A schedule played on a clock: each stage runs its list in order and waits for what others make. Gives the bubble, the
// memory and the table of time slots, and finds orders that never end. Knows nothing of graphs: durations are given.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/plan/strategy.h"

namespace trainer {

/// Of one chunk's actions, in any one unit of time. An undivided backward takes both its parts.
struct Durations {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double communication =
      0;  ///< from the end of an action here to its result's arrival on another stage; stages compute meanwhile
};

struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
};

struct StageTimes {
  std::vector<TimedAction> actions;
  double busy = 0;  ///< sum of its actions
  /// The most (micro-batch, chunk) pairs at a time whose forward has begun and whose backward (if split: its weight
  /// part) has not ended.
  int peak_activations = 0;

  /// Time between its first action's start and its last one's end in which it waits.
  double waiting() const { return actions.empty() ? 0 : actions.back().end - actions.front().start - busy; }
};

struct Simulation {
  std::vector<StageTimes> stages;  ///< under a deadlock, of what ran
  double makespan = 0;
  std::string deadlock;  ///< what each stage waits for; empty: all ran

  /// The share of all stages' time, from the start to the end of the last, in which they do nothing.
  double bubble() const;
};

/// `durations`: one for each chunk.
Simulation simulate(const Schedule& schedule, std::span<const Durations> durations);
/// All chunks alike.
Simulation simulate(const Schedule& schedule, const Durations& durations = {});

/// "F3", or "F3.1" with the chunk: forward F, backward B, its input part I, its weight part W.
std::string label(const Action& action, bool with_chunk);

}  // namespace trainer
