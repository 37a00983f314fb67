// Transfers are given the times at which a simulation makes them. Why that cannot deadlock: a transfer made at time t is issued
// by its sender after an action that ended at t, and by its receiver after an action that started before t. So what either must finish
// first (those actions, their inputs, the points before) was made before t; by induction over t all of it finishes.
#include "strategies/pipeline/transfers.h"

#include <algorithm>
#include <optional>

#include "engine/core/check.h"
#include "strategies/pipeline/simulate.h"

namespace trainer::strategies {
namespace {

using Kind = Action::Kind;

// The transfer that an action ends with, as its sender sees it; none at either end of the model and to a chunk of the same stage.
std::optional<Transfer> result_of(const Action& action, const Schedule& schedule) {
  if (action.kind == Kind::backward_weight) return std::nullopt;
  const bool forward = action.kind == Kind::forward;
  const int reader = forward ? action.chunk + 1 : action.chunk - 1;
  if (reader < 0 || reader == static_cast<int>(schedule.stage_of_chunk.size())) return std::nullopt;
  const int peer = schedule.stage_of_chunk[static_cast<std::size_t>(reader)];
  if (peer == schedule.stage_of_chunk[static_cast<std::size_t>(action.chunk)]) return std::nullopt;
  return Transfer{forward ? Transfer::Kind::activation : Transfer::Kind::gradient, action.micro_batch, reader, peer};
}

// The first point of a stage's list that lies at or after `time`.
std::size_t point_at(double time, const std::vector<TimedAction>& actions) {
  const auto next =
      std::lower_bound(actions.begin(), actions.end(), time, [](const TimedAction& action, double t) { return action.start < t; });
  return static_cast<std::size_t>(next - actions.begin());
}

struct Sent {
  double time;
  int from;
  Transfer transfer;
};

}  // namespace

std::vector<std::vector<TransferPoint>> place_transfers(const Schedule& schedule) {
  const Simulation simulation = simulate(schedule);
  CHECK(simulation.deadlock.empty(), simulation.deadlock);
  std::vector<std::vector<TransferPoint>> points;
  std::vector<Sent> sent;
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    const auto& actions = simulation.stages[stage].actions;
    points.emplace_back(actions.size() + 1);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const auto transfer = result_of(actions[i].action, schedule);
      if (!transfer) continue;
      points[stage][i + 1].sends.push_back(*transfer);
      sent.push_back({actions[i].end, static_cast<int>(stage), *transfer});
    }
  }
  std::stable_sort(sent.begin(), sent.end(), [](const Sent& a, const Sent& b) { return a.time < b.time; });
  for (const Sent& one : sent) {
    const auto to = static_cast<std::size_t>(one.transfer.peer);
    Transfer received = one.transfer;
    received.peer = one.from;
    points[to][point_at(one.time, simulation.stages[to].actions)].receives.push_back(received);
  }
  return points;
}

}  // namespace trainer::strategies
