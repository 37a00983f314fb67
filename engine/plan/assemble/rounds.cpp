// A stage repeats itself where each action is that of a round before, for micro-batches a round later. Rounds of one
// micro-batch are tried first, then longer ones: interleaved schedules take as many as they have stages. Where that is
// not found, a stage may take all micro-batches through one pass of a chunk, then through the next.
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
    result.loops.push_back({{0, loop, size}});
  }
  return result;
}

// The same where every stage takes all micro-batches through one pass after another, in order. Messages run ahead or
// behind by up to a round for each stage, so that many rounds more stay on both sides.
std::optional<Rounds> sweeps(const Schedule& schedule, int micro_batches, int margin) {
  const int beside = margin + static_cast<int>(schedule.stages.size());
  const auto all = static_cast<std::size_t>(micro_batches), before = static_cast<std::size_t>(beside);
  Rounds result;
  result.micro_batches = 1;
  result.left = 2 * beside + 1;
  result.times = micro_batches - result.left + 1;
  if (result.times - 1 < kLeastSaved) return std::nullopt;
  result.schedule.stage_of_chunk = schedule.stage_of_chunk;
  for (const std::vector<Action>& actions : schedule.stages) {
    std::vector<Action>& left = result.schedule.stages.emplace_back();
    std::vector<Rounds::Repeated>& loops = result.loops.emplace_back();
    if (actions.empty() || actions.size() % all != 0) return std::nullopt;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action &one = actions[i], &first = actions[i / all * all];
      const auto micro_batch = static_cast<int>(i % all);
      if (one.kind != first.kind || one.chunk != first.chunk || one.micro_batch != micro_batch) return std::nullopt;
      if (micro_batch == 0) loops.push_back({left.size(), left.size() + before, 1});
      if (micro_batch < result.left) left.push_back(one);
    }
  }
  return result;
}

// Of a schedule that numbers micro-batches one by one.
std::optional<Rounds> find(const Schedule& schedule, int micro_batches, int margin) {
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
  return sweeps(schedule, micro_batches, margin);
}

}  // namespace

std::optional<Rounds> find_rounds(const Schedule& schedule, int micro_batches, int margin, int together) {
  std::optional<Rounds> rounds = find(schedule, micro_batches / together, margin);
  if (rounds) {
    rounds->left *= together;
    rounds->micro_batches *= together;
  }
  return rounds;
}

}  // namespace trainer
