// ZB-V (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 6): no bubble in 1F1B's memory. Each stage holds two chunks in
// the shape of a V: there on stages 0 to p − 1, and back, so that stage 0 has the loss and begins its backward at once; a stage that
// runs far ahead on its first chunk is therefore behind on its second, and all stages hold equally much.
//
// With p stages, m micro-batches, and chunks whose forward, input part and weight part take equal times F:
//   bubble: none between a stage's first action and its last, where m ≥ 2p − 1;
//   live activations, until the weight part: at most 2p chunks (half stages) on every stage, 1F1B's most.
// As under ZB-H2, stages that must end together wait up to (p − 1)F.
// Fewer micro-batches follow the schedule of 2p − 1 with the others left out: an action only ever waits for its own micro-batch.
#include <algorithm>
#include <array>
#include <cstdint>

#include "strategies/pipeline/actions.h"
#include "strategies/strategies.h"

namespace trainer::strategies {
namespace {

// One of a stage's two chunks: each kind of action takes the micro-batches in order.
class Arm {
 public:
  Arm(Actions& actions, int chunk, int micro_batches) : actions_(&actions), chunk_(chunk), micro_batches_(micro_batches) {}

  void forward() { take(forwards, &Actions::forward); }
  void input() { take(inputs, &Actions::backward_input); }
  void weight() { take(weights, &Actions::backward_weight); }
  void backward() {
    input();
    weight();
  }
  int forwarded() const { return next_[forwards]; }
  bool owes_weight() const { return next_[weights] < next_[inputs]; }

 private:
  enum Kind : std::uint8_t { forwards, inputs, weights };

  void take(Kind kind, void (Actions::*list)(int, int)) {
    const int micro_batch = next_[kind]++;
    if (micro_batch < micro_batches_) (actions_->*list)(micro_batch, chunk_);
  }

  Actions* actions_;
  int chunk_;
  int micro_batches_;
  std::array<int, 3> next_{};
};

std::vector<Action> stage_actions(int stages, int stage, int micro_batches) {
  const int planned = std::max(micro_batches, 2 * stages - 1);
  const int to_end = stages - stage;  // stages from here to the tip of the V
  Actions actions;
  Arm there(actions, stage, micro_batches);
  Arm back(actions, 2 * stages - 1 - stage, micro_batches);

  // Warm-up: ahead on the first chunk until the second's first micro-batch arrives, then in turns until its gradient does.
  for (int i = 0; i < 2 * to_end - 1; ++i) there.forward();
  for (int i = 0; i < stage; ++i) {
    back.forward();
    there.forward();
  }
  for (int i = 0; i < to_end; ++i) {
    back.forward();
    back.backward();
  }
  // Steady: one micro-batch in, one out of each chunk.
  while (back.forwarded() < planned) {
    if (there.forwarded() < planned) there.forward();
    there.backward();
    back.forward();
    back.backward();
  }
  // Cool-down: input parts first, since others wait for them; weight parts fill what would be waiting.
  const auto owed = [&] { (back.owes_weight() ? back : there).weight(); };
  for (int i = 0; i < stage; ++i) {
    there.input();
    back.input();
  }
  for (int i = 0; i < to_end; ++i) {
    there.input();
    owed();
  }
  while (back.owes_weight() || there.owes_weight()) owed();
  return actions.take();
}

}  // namespace

Schedule zb_v(int stages, int, int micro_batches) {
  Schedule schedule{in_a_v(stages), {}};
  for (int stage = 0; stage < stages; ++stage) schedule.stages.push_back(stage_actions(stages, stage, micro_batches));
  return schedule;
}

}  // namespace trainer::strategies
