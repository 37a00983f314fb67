// Time goes by in slots, and every stage does one action in each: its next in order if that is ready, else the oldest
// weight part.
#include "strategies/pipeline/fill_weights.h"

#include <algorithm>
#include <deque>

#include "engine/core/check.h"

namespace trainer::strategies {
namespace {

using Kind = Action::Kind;

class Filler {
 public:
  Filler(const Schedule& order, int most_live)
      : order_(order), most_live_(most_live), num_chunks_(order.stage_of_chunk.size()), stages_(order.stages.size()) {
    int micro_batches = 0;
    for (const auto& actions : order.stages)
      for (const Action& action : actions) micro_batches = std::max(micro_batches, action.micro_batch + 1);
    forwards_.assign(static_cast<std::size_t>(micro_batches) * num_chunks_, false);
    inputs_ = forwards_;
  }

  Schedule fill() {
    Schedule filled{order_.stage_of_chunk, {}};
    filled.stages.resize(stages_.size());
    for (bool moved = true; moved;) {
      moved = false;
      std::vector<Action> done;  // of this slot: others see it in the next
      for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
        auto& actions = filled.stages[stage];
        if (!act(stage, actions)) continue;
        done.push_back(actions.back());
        moved = true;
      }
      for (const Action& action : done)
        if (action.kind != Kind::backward_weight) made(action.kind, action.micro_batch, action.chunk) = true;
    }
    for (std::size_t stage = 0; stage < stages_.size(); ++stage)
      CHECK(stages_[stage].next == order_.stages[stage].size(), "an order that does not end");
    return filled;
  }

 private:
  struct Stage {
    std::size_t next = 0;
    int live = 0;
    std::deque<Action> owed;
  };

  bool act(std::size_t at, std::vector<Action>& actions) {
    Stage& stage = stages_[at];
    const auto& order = order_.stages[at];
    if (stage.next < order.size() && ready(order[stage.next], stage)) {
      const Action& action = order[stage.next++];
      actions.push_back(action);
      if (action.kind == Kind::forward)
        ++stage.live;
      else
        stage.owed.push_back({Kind::backward_weight, action.micro_batch, action.chunk});
      return true;
    }
    if (stage.owed.empty()) return false;
    actions.push_back(stage.owed.front());
    stage.owed.pop_front();
    --stage.live;
    return true;
  }

  bool ready(const Action& action, const Stage& stage) {
    const auto [kind, micro_batch, chunk] = action;
    if (kind == Kind::forward)
      return stage.live < most_live_ && (chunk == 0 || made(Kind::forward, micro_batch, chunk - 1));
    const bool last = chunk + 1 == static_cast<int>(num_chunks_);
    return made(Kind::forward, micro_batch, chunk) && (last || made(Kind::backward_input, micro_batch, chunk + 1));
  }

  std::vector<bool>::reference made(Kind kind, int micro_batch, int chunk) {
    const std::size_t index = static_cast<std::size_t>(micro_batch) * num_chunks_ + static_cast<std::size_t>(chunk);
    return (kind == Kind::forward ? forwards_ : inputs_)[index];
  }

  const Schedule& order_;
  int most_live_;
  std::size_t num_chunks_;
  std::vector<Stage> stages_;
  std::vector<bool> forwards_;  // by micro-batch and chunk: done in an earlier slot
  std::vector<bool> inputs_;
};

}  // namespace

Schedule fill_weights(const Schedule& order, int most_live) { return Filler(order, most_live).fill(); }

}  // namespace trainer::strategies
