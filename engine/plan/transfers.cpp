// The schedule is played once, and every transfer takes its place by the time at which its sender is done.
#include "engine/plan/transfers.h"

#include <algorithm>
#include <tuple>

#include "engine/core/check.h"

namespace trainer {
namespace {

using Kind = Action::Kind;
using Time = std::int64_t;

std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

constexpr Time kUnknown = -1;

Time duration(Kind kind) { return kind == Kind::backward ? 2 : 1; }
bool is_backward(Kind kind) { return kind == Kind::backward || kind == Kind::backward_input; }

// When every action begins and ends if nothing but the schedule and the data hold it up.
class Play {
 public:
  explicit Play(const Schedule& schedule) : schedule_(schedule), chunks_(static_cast<int>(schedule.stage_of_chunk.size())) {
    int micro_batches = 0;
    for (const auto& actions : schedule.stages)
      for (const Action& action : actions) micro_batches = std::max(micro_batches, action.micro_batch + 1);
    for (auto* times : {&ends_, &begins_})
      for (auto& of_pass : *times) of_pass.assign(static_cast<std::size_t>(micro_batches) * at(chunks_), kUnknown);
    begin.resize(schedule.stages.size());
    std::vector<Time> clock(schedule.stages.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage)
        while (begin[stage].size() < schedule.stages[stage].size() && step(stage, clock[stage])) moved = true;
    }
    for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage)
      CHECK(begin[stage].size() == schedule.stages[stage].size(), "a schedule comes to its end");
  }

  /// End of the pass of that kind; kUnknown if there is none.
  Time end(bool backward, int micro_batch, int chunk) const { return ends_[backward ? 1 : 0][slot(micro_batch, chunk)]; }
  Time begun(bool backward, int micro_batch, int chunk) const { return begins_[backward ? 1 : 0][slot(micro_batch, chunk)]; }

  std::vector<std::vector<Time>> begin;  ///< [stage][action]

 private:
  std::size_t slot(int micro_batch, int chunk) const { return at(micro_batch) * at(chunks_) + at(chunk); }

  bool step(std::size_t stage, Time& clock) {
    const Action& action = schedule_.stages[stage][begin[stage].size()];
    Time start = clock;
    const auto wait = [&](bool backward, int chunk) {
      const Time ended = end(backward, action.micro_batch, chunk);
      start = ended == kUnknown ? kUnknown : std::max(start, ended);
      return ended != kUnknown;
    };
    if (action.kind == Kind::forward && action.chunk > 0 && !wait(false, action.chunk - 1)) return false;
    if (is_backward(action.kind) && !wait(false, action.chunk)) return false;
    if (is_backward(action.kind) && action.chunk + 1 < chunks_ && !wait(true, action.chunk + 1)) return false;
    if (action.kind == Kind::backward_weight && !wait(true, action.chunk)) return false;
    begin[stage].push_back(start);
    clock = start + duration(action.kind);
    if (action.kind != Kind::backward_weight) {
      const std::size_t pass = is_backward(action.kind) ? 1 : 0, place = slot(action.micro_batch, action.chunk);
      begins_[pass][place] = start;
      ends_[pass][place] = clock;
    }
    return true;
  }

  const Schedule& schedule_;
  const int chunks_;
  std::array<std::vector<Time>, 2> begins_, ends_;  // forward, backward
};

}  // namespace

std::vector<Boundary> boundaries(const Graph& graph, int num_chunks) {
  std::vector<Boundary> result(at(std::max(0, num_chunks - 1)));
  std::vector<int> made(graph.values.size(), -1), furthest(graph.values.size(), -1), nearest(graph.values.size(), num_chunks);
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
    if (made[id] < 0 || graph.values[id].kind != ValueKind::activation || static_cast<ValueId>(id) == graph.loss.sum) continue;
    if (by_backward[id]) {
      CHECK(furthest[id] <= made[id], "gradients flow back: " + graph.values[id].name);
      for (int chunk = nearest[id]; chunk < made[id]; ++chunk) result[at(chunk)].gradients.push_back(static_cast<ValueId>(id));
    } else {
      CHECK(nearest[id] >= made[id], "activations flow on: " + graph.values[id].name);
      for (int chunk = made[id]; chunk < furthest[id]; ++chunk) result[at(chunk)].activations.push_back(static_cast<ValueId>(id));
    }
  }
  return result;
}

std::vector<std::vector<std::vector<Transfer>>> order_transfers(const Schedule& schedule) {
  std::vector<std::vector<std::vector<Transfer>>> result(schedule.stages.size());
  for (std::size_t stage = 0; stage < result.size(); ++stage) result[stage].resize(schedule.stages[stage].size() + 1);
  if (schedule.stage_of_chunk.size() == 1) return result;
  const Play play(schedule);

  // The first time from `ended` on, and not after `needed`, at which both stages are between two actions: neither holds up what the other
  // communicates inside an action. `ended`, if there is none.
  const auto meeting = [&](int from, int to, Time ended, Time needed) {
    const std::vector<Time>& mine = play.begin[at(from)], &theirs = play.begin[at(to)];
    auto a = std::lower_bound(mine.begin(), mine.end(), ended), b = std::lower_bound(theirs.begin(), theirs.end(), ended);
    while (a != mine.end() && b != theirs.end() && *a <= needed && *b <= needed) {
      if (*a == *b) return *a;
      (*a < *b ? a : b) += 1;
    }
    return ended;
  };

  struct Crossing {
    Time time;
    Transfer transfer;
    int from, to;
  };
  std::vector<Crossing> all;
  const auto chunks = static_cast<int>(schedule.stage_of_chunk.size());
  for (const auto& actions : schedule.stages)
    for (const Action& action : actions) {
      const bool backward = is_backward(action.kind);
      const int target = backward ? action.chunk - 1 : action.chunk + 1;
      if (action.kind == Kind::backward_weight || target < 0 || target >= chunks) continue;
      const int from = schedule.stage_of_chunk[at(action.chunk)], to = schedule.stage_of_chunk[at(target)];
      if (from == to) continue;
      const Time needed = play.begun(backward, action.micro_batch, target);
      all.push_back({meeting(from, to, play.end(backward, action.micro_batch, action.chunk), needed), {action.micro_batch, std::min(action.chunk, target), backward, false, 0}, from, to});
    }
  std::sort(all.begin(), all.end(), [](const Crossing& a, const Crossing& b) {
    const auto key = [](const Crossing& c) { return std::tuple(c.time, c.transfer.backward, c.transfer.boundary, c.transfer.micro_batch); };
    return key(a) < key(b);
  });
  for (const Crossing& crossing : all) {
    const auto issue = [&](int stage, bool send, int peer) {
      const std::vector<Time>& begin = play.begin[at(stage)];
      // After every action that has begun by then: nothing that an action communicates of its own waits for a message under way.
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
