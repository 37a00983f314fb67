// ZB-V (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 6): no bubble in 1F1B's memory. Each stage holds
// two chunks in the shape of a V: there on stages 0 to p − 1, and back, so that stage 0 has the loss and begins its
// backward at once; a stage that runs far ahead on its first chunk is therefore behind on its second, and all stages
// hold equally much.
//
// With p stages, m micro-batches and times F, B and W of a stage's forward, input part and weight part (both chunks; W
// ≤ F ≤ B):
//   bubble: (p − 1)(B − W) between a stage's first action and its last, where m ≥ 2p − 1; 0 where the three are equal;
//   live activations, until the weight part: min(2m, 2p) chunks at most, on every stage: 1F1B's most.
// Departs from the paper in what stages must not do without: if they have to end together (a norm to clip by, a check
// for overflow), they wait up to (p − 1)F/2, as under ZB-H2. And fewer micro-batches than 2p − 1 follow the order of 2p
// − 1 with the others left out, which ends because an action only ever waits for its own micro-batch.
#include <algorithm>

#include "strategies/pipeline/actions.h"
#include "strategies/pipeline/fill_weights.h"
#include "strategies/strategies.h"

namespace trainer::strategies {
namespace {

// One of a stage's two chunks: it takes the micro-batches in order, those of the schedule's and then as many more as
// the V needs.
class Arm {
 public:
  Arm(Actions& actions, int chunk, int micro_batches)
      : actions_(&actions), chunk_(chunk), micro_batches_(micro_batches) {}

  void forward() {
    if (forwards_++ < micro_batches_) actions_->forward(forwards_ - 1, chunk_);
  }
  void backward() {
    if (inputs_++ < micro_batches_) actions_->backward_input(inputs_ - 1, chunk_);
  }
  int forwards() const { return forwards_; }

 private:
  Actions* actions_;
  int chunk_;
  int micro_batches_;
  int forwards_ = 0;
  int inputs_ = 0;
};

// Forwards and input parts of one stage. Every backward of the warm-up and of the steady part has its weight part with
// it where times are equal, and memory then leaves no choice.
std::vector<Action> order_of(int stage, int stages, int micro_batches) {
  const int planned = std::max(micro_batches, 2 * stages - 1);
  const int to_tip = stages - stage;  // stages from here to the tip of the V
  Actions actions;
  Arm there(actions, stage, micro_batches);
  Arm back(actions, 2 * stages - 1 - stage, micro_batches);

  // Warm-up: ahead on the first chunk until the second's first micro-batch arrives, then in turns until its gradient
  // does.
  for (int i = 0; i < 2 * to_tip - 1; ++i) there.forward();
  for (int i = 0; i < stage; ++i) {
    back.forward();
    there.forward();
  }
  for (int i = 0; i < to_tip; ++i) {
    back.forward();
    back.backward();
  }
  // Steady: one micro-batch in, one out of each chunk.
  while (back.forwards() < planned) {
    if (there.forwards() < planned) there.forward();
    there.backward();
    back.forward();
    back.backward();
  }
  // Cool-down: what the stages before wait for.
  for (int i = 0; i < stage; ++i) {
    there.backward();
    back.backward();
  }
  for (int i = 0; i < to_tip; ++i) there.backward();
  return actions.take();
}

}  // namespace

Schedule zb_v(int stages, int, int micro_batches) {
  Schedule schedule{in_a_v(stages), {}};
  for (int stage = 0; stage < stages; ++stage) schedule.stages.push_back(order_of(stage, stages, micro_batches));
  return fill_weights(schedule, 2 * stages);
}

}  // namespace trainer::strategies
