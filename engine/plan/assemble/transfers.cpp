// The schedule is played once, and every transfer takes its place by the time at which its sender is done.
#include "engine/plan/assemble/transfers.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/core/check.h"
#include "engine/core/index.h"
#include "engine/plan/simulate.h"

namespace trainer {
namespace {

using Kind = Action::Kind;

bool is_backward(Kind kind) { return kind == Kind::backward || kind == Kind::backward_input; }

// A value on its way between two stages.
struct Crossing {
  double time;
  Transfer transfer;
  int from, to;
};

// The order of transfers.h, from the times of a schedule that was played.
class Ordering {
 public:
  explicit Ordering(const Schedule& schedule)
      : schedule_(schedule), played_(simulate(schedule)), begins_(schedule.stages.size()) {
    CHECK(played_.deadlock.empty(), "a schedule has no deadlock");
    for (std::size_t stage = 0; stage < begins_.size(); ++stage)
      for (const TimedAction& timed : played_.stages[stage].actions) {
        begins_[stage].push_back(timed.start);
        const auto& [kind, micro_batch, chunk] = timed.action;
        if (kind != Kind::backward_weight) starts_[{is_backward(kind), micro_batch, chunk}] = timed.start;
      }
  }

  OrderedTransfers run() const {
    OrderedTransfers result(schedule_.stages.size());
    for (std::size_t stage = 0; stage < result.size(); ++stage) result[stage].resize(begins_[stage].size() + 1);
    for (const Crossing& crossing : crossings()) {
      issue(crossing, crossing.from, true, crossing.to, result);
      issue(crossing, crossing.to, false, crossing.from, result);
    }
    return result;
  }

 private:
  std::vector<Crossing> crossings() const {
    std::vector<Crossing> all;
    const auto chunks = static_cast<int>(schedule_.stage_of_chunk.size());
    for (const StageTimes& stage : played_.stages)
      for (const auto& [action, start, end] : stage.actions) {
        const bool backward = is_backward(action.kind);
        const int target = backward ? action.chunk - 1 : action.chunk + 1;
        if (action.kind == Kind::backward_weight || target < 0 || target >= chunks) continue;
        const int from = schedule_.stage_of_chunk[at(action.chunk)], to = schedule_.stage_of_chunk[at(target)];
        if (from == to) continue;
        const double time = meeting(from, to, end, starts_.at({backward, action.micro_batch, target}));
        all.push_back({time, {action.micro_batch, std::min(action.chunk, target), backward, false, 0}, from, to});
      }
    std::ranges::sort(all, {}, [](const Crossing& c) {
      return std::tuple(c.time, c.transfer.backward, c.transfer.boundary, c.transfer.micro_batch);
    });
    return all;
  }

  // The first time from `ended` on, and not after `needed`, at which both stages are between two actions: neither holds
  // up what the other communicates inside an action. `ended`, if there is none.
  double meeting(int from, int to, double ended, double needed) const {
    const std::vector<double>&mine = begins_[at(from)], &theirs = begins_[at(to)];
    auto a = std::ranges::lower_bound(mine, ended), b = std::ranges::lower_bound(theirs, ended);
    while (a != mine.end() && b != theirs.end() && *a <= needed && *b <= needed) {
      if (*a == *b) return *a;
      (*a < *b ? a : b) += 1;
    }
    return ended;
  }

  // After every action that has begun by then: nothing that an action communicates of its own waits for a message under
  // way.
  void issue(const Crossing& crossing, int stage, bool send, int peer, OrderedTransfers& result) const {
    const std::vector<double>& begin = begins_[at(stage)];
    const auto position = std::ranges::lower_bound(begin, crossing.time) - begin.begin();
    Transfer transfer = crossing.transfer;
    transfer.send = send;
    transfer.peer = peer;
    result[at(stage)][static_cast<std::size_t>(position)].push_back(transfer);
  }

  const Schedule& schedule_;
  const Simulation played_;
  std::map<std::tuple<bool, int, int>, double> starts_;  // of passes by direction, micro-batch and chunk
  std::vector<std::vector<double>> begins_;              // [stage][action]
};

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
    if (made[id] < 0 || graph.values[id].kind != ValueKind::activation || graph.loss.sums_up(static_cast<ValueId>(id)))
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
  if (schedule.stage_of_chunk.size() > 1) return Ordering(schedule).run();
  return {std::vector<std::vector<Transfer>>(schedule.stages[0].size() + 1)};
}

}  // namespace trainer
