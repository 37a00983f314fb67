// The schedule is played once, and every transfer takes its place by the time at which its sender is done.
#include "engine/plan/assemble/transfers.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/core/check.h"
#include "engine/plan/simulate.h"

namespace trainer {
namespace {

using Kind = Action::Kind;

std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

bool is_backward(Kind kind) { return kind == Kind::backward || kind == Kind::backward_input; }

}  // namespace

std::vector<Boundary> boundaries(const Graph& graph, int num_chunks) {
  std::vector<Boundary> result(at(std::max(0, num_chunks - 1)));
  std::vector<int> made(graph.values.size(), -1), furthest(graph.values.size(), -1),
      nearest(graph.values.size(), num_chunks);
  std::vector<bool> by_backward(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (ValueId input : node.inputs) {
      const std::size_t storage = at(graph.storage(input));
      furthest[storage] = std::max(furthest[storage], node.chunk);
      nearest[storage] = std::min(nearest[storage], node.chunk);
    }
    for (ValueId output : node.outputs) {
      if (graph.storage(output) != output) continue;
      made[at(output)] = node.chunk;
      by_backward[at(output)] = node.backward && !node.recomputed;
    }
  }
  for (std::size_t id = 0; id < graph.values.size(); ++id) {
    if (made[id] < 0 || graph.values[id].kind != ValueKind::activation || static_cast<ValueId>(id) == graph.loss.sum)
      continue;
    if (by_backward[id]) {
      CHECK(furthest[id] <= made[id], "gradients flow back: " + graph.values[id].name);
      for (int chunk = nearest[id]; chunk < made[id]; ++chunk)
        result[at(chunk)].gradients.push_back(static_cast<ValueId>(id));
    } else {
      CHECK(nearest[id] >= made[id], "activations flow on: " + graph.values[id].name);
      for (int chunk = made[id]; chunk < furthest[id]; ++chunk)
        result[at(chunk)].activations.push_back(static_cast<ValueId>(id));
    }
  }
  return result;
}

OrderedTransfers order_transfers(const Schedule& schedule) {
  OrderedTransfers result(schedule.stages.size());
  for (std::size_t stage = 0; stage < result.size(); ++stage) result[stage].resize(schedule.stages[stage].size() + 1);
  if (schedule.stage_of_chunk.size() == 1) return result;
  const Simulation played = simulate(schedule);
  CHECK(played.deadlock.empty(), "a schedule has no deadlock");
  std::map<std::tuple<bool, int, int>, double> starts;              // of passes by direction, micro-batch and chunk
  std::vector<std::vector<double>> begins(schedule.stages.size());  // [stage][action]
  for (std::size_t stage = 0; stage < begins.size(); ++stage)
    for (const TimedAction& timed : played.stages[stage].actions) {
      begins[stage].push_back(timed.start);
      const auto& [kind, micro_batch, chunk] = timed.action;
      if (kind != Kind::backward_weight) starts[{is_backward(kind), micro_batch, chunk}] = timed.start;
    }

  // The first time from `ended` on, and not after `needed`, at which both stages are between two actions: neither holds
  // up what the other communicates inside an action. `ended`, if there is none.
  const auto meeting = [&](int from, int to, double ended, double needed) {
    const std::vector<double>&mine = begins[at(from)], &theirs = begins[at(to)];
    auto a = std::lower_bound(mine.begin(), mine.end(), ended),
         b = std::lower_bound(theirs.begin(), theirs.end(), ended);
    while (a != mine.end() && b != theirs.end() && *a <= needed && *b <= needed) {
      if (*a == *b) return *a;
      (*a < *b ? a : b) += 1;
    }
    return ended;
  };

  struct Crossing {
    double time;
    Transfer transfer;
    int from, to;
  };
  std::vector<Crossing> all;
  const auto chunks = static_cast<int>(schedule.stage_of_chunk.size());
  for (const StageTimes& stage : played.stages)
    for (const auto& [action, start, end] : stage.actions) {
      const bool backward = is_backward(action.kind);
      const int target = backward ? action.chunk - 1 : action.chunk + 1;
      if (action.kind == Kind::backward_weight || target < 0 || target >= chunks) continue;
      const int from = schedule.stage_of_chunk[at(action.chunk)], to = schedule.stage_of_chunk[at(target)];
      if (from == to) continue;
      const double time = meeting(from, to, end, starts.at({backward, action.micro_batch, target}));
      all.push_back({time, {action.micro_batch, std::min(action.chunk, target), backward, false, 0}, from, to});
    }
  std::sort(all.begin(), all.end(), [](const Crossing& a, const Crossing& b) {
    const auto key = [](const Crossing& c) {
      return std::tuple(c.time, c.transfer.backward, c.transfer.boundary, c.transfer.micro_batch);
    };
    return key(a) < key(b);
  });
  for (const Crossing& crossing : all) {
    const auto issue = [&](int stage, bool send, int peer) {
      const std::vector<double>& begin = begins[at(stage)];
      // After every action that has begun by then: nothing that an action communicates of its own waits for a message
      // under way.
      const auto position = std::lower_bound(begin.begin(), begin.end(), crossing.time) - begin.begin();
      Transfer transfer = crossing.transfer;
      transfer.send = send;
      transfer.peer = peer;
      result[at(stage)][static_cast<std::size_t>(position)].push_back(transfer);
    };
    issue(crossing.from, true, crossing.to);
    issue(crossing.to, false, crossing.from);
  }
  return result;
}

}  // namespace trainer
