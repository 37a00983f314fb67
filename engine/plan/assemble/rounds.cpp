// A stage repeats itself where each action is that of a round before, for micro-batches a round later. Rounds of one
// micro-batch are tried first, then longer ones: interleaved schedules take as many as they have stages.
#include "engine/plan/assemble/rounds.h"

#include <algorithm>

namespace trainer {
namespace {

constexpr int kLongestRound = 64;  // micro-batches
constexpr int kLeastSaved = 16;    // micro-batches: a shorter list is not worth a loop

// Actions [first, first + size · rounds) of a stage.
struct Repetition {
  std::size_t first = 0, size = 0, rounds = 0;
};

Repetition longest_repetition(const std::vector<Action>& actions, int micro_batches, int round) {
  Repetition best;
  const std::size_t all = actions.size() * static_cast<std::size_t>(round);
  if (actions.empty() || all % static_cast<std::size_t>(micro_batches) != 0) return best;
  const std::size_t size = all / static_cast<std::size_t>(micro_batches);
  std::size_t run = 0;  // of actions up to i that a later one repeats
  for (std::size_t i = 0; i + size < actions.size(); ++i) {
    const Action &one = actions[i], &later = actions[i + size];
    const bool repeats =
        later.kind == one.kind && later.chunk == one.chunk && later.micro_batch == one.micro_batch + round;
    run = repeats ? run + 1 : 0;
    if (const std::size_t rounds = run / size + 1; run > 0 && rounds > best.rounds) best = {i + 1 - run, size, rounds};
  }
  return best;
}

Rounds shortened(const Schedule& schedule, const std::vector<Repetition>& stages, int micro_batches, int round,
                 int times) {
  Rounds result;
  result.micro_batches = round;
  result.times = times;
  result.left = micro_batches - (times - 1) * round;
  result.schedule.stage_of_chunk = schedule.stage_of_chunk;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const auto& [first, size, rounds] = stages[stage];
    const std::size_t kept = rounds - static_cast<std::size_t>(times - 1);
    const std::size_t loop = first + size * (kept / 2), behind = loop + size;
    const std::vector<Action>& actions = schedule.stages[stage];
    std::vector<Action>& left =
        result.schedule.stages.emplace_back(actions.begin(), actions.begin() + static_cast<std::ptrdiff_t>(behind));
    for (std::size_t i = behind + size * static_cast<std::size_t>(times - 1); i < actions.size(); ++i) {
      left.push_back(actions[i]);
      left.back().micro_batch -= (times - 1) * round;
    }
    result.first.push_back(loop);
    result.size.push_back(size);
  }
  return result;
}

}  // namespace

std::optional<Rounds> find_rounds(const Schedule& schedule, int micro_batches, int margin) {
  for (int round = 1; round <= std::min(kLongestRound, micro_batches / 3); ++round) {
    int times = micro_batches;
    std::vector<Repetition> stages;
    for (const std::vector<Action>& actions : schedule.stages) {
      stages.push_back(longest_repetition(actions, micro_batches, round));
      times = std::min(times, static_cast<int>(stages.back().rounds) - 2 * margin);
      if (times < 2) break;
    }
    if (times >= 2 && (times - 1) * round >= kLeastSaved)
      return shortened(schedule, stages, micro_batches, round, times);
  }
  return std::nullopt;
}

}  // namespace trainer
