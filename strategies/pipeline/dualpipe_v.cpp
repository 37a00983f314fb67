// DualPipe-V (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1, cut in half as their DualPipe
// repository describes it: one copy of the weights). Each stage holds two chunks in the shape of a V, as under ZB-V. In
// the steady part every forward stands next to a backward of the stage's other chunk, so that the communication of one
// (of experts, of a tensor axis) runs under the computation of the other. Without such communication ZB-V idles less.
//
// With p stages, m micro-batches and times F, I and W of one chunk's forward, input part and weight part:
//   bubble: (p − 1)(F + I − W) where m ≥ 2p and W ≤ F = I; at most (p − 1)(F + 2I − W) where F ≤ I, which is what their
//   table says of a forward and a backward that do not overlap;
//   live activations, until the weight part: min(2m, 2p + 1) chunks at most.
// Departs from the report in two points. A backward whose weight part is not put off is an input part with its weight
// part behind it. And fewer micro-batches than 2p follow the order of 2p with the others left out.
#include <algorithm>
#include <deque>

#include "strategies/pipeline/actions.h"
#include "strategies/strategies.h"

namespace trainer::strategies {
namespace {

// One stage's list. Arm 0 is the chunk on the way there, arm 1 the one on the way back; each takes the micro-batches in
// order.
class Stage {
 public:
  Stage(int stage, int stages, int micro_batches)
      : chunks_{stage, 2 * stages - 1 - stage}, micro_batches_(micro_batches) {}

  void forward(int arm) {
    const int micro_batch = forwards_[arm]++;
    if (micro_batch < micro_batches_) actions_.forward(micro_batch, chunks_[arm]);
  }
  void backward(int arm) {
    input_part(arm);
    weight_part();
  }
  // A backward whose weight part is put off.
  void input_part(int arm) {
    const int micro_batch = inputs_[arm]++;
    owed_.push_back({Action::Kind::backward_weight, micro_batch, chunks_[arm]});
    if (micro_batch < micro_batches_) actions_.backward_input(micro_batch, chunks_[arm]);
  }
  // The oldest one that was put off.
  void weight_part() {
    const Action weight = owed_.front();
    owed_.pop_front();
    if (weight.micro_batch < micro_batches_) actions_.backward_weight(weight.micro_batch, weight.chunk);
  }
  std::vector<Action> take() { return actions_.take(); }

 private:
  const int chunks_[2];
  const int micro_batches_;
  int forwards_[2] = {}, inputs_[2] = {};
  std::deque<Action> owed_;
  Actions actions_;
};

std::vector<Action> order_of(int at, int stages, int micro_batches) {
  const int behind = stages - 1 - at;  // stages between this one and the tip of the V
  const int steady = std::max(micro_batches, 2 * stages) - 2 * stages + at + 1;
  Stage stage(at, stages, micro_batches);
  for (int i = 0; i < 2 * behind; ++i) stage.forward(0);
  for (int i = 0; i <= at; ++i) {
    stage.forward(0);
    stage.forward(1);
  }
  for (int i = 0; i < behind; ++i) {
    stage.backward(1);
    stage.forward(1);
  }
  for (int i = 0; i < steady; ++i) {
    stage.forward(0);
    stage.backward(1);
    stage.forward(1);
    stage.backward(0);
  }
  for (int i = 0; i < behind; ++i) {
    stage.backward(1);
    stage.forward(1);
    stage.backward(0);
  }
  // Of the last 2 (at + 1) backwards the second half puts its weight parts off, to where stages would wait.
  for (int i = 0; i < 2 * (at + 1); ++i)
    if (const int arm = 1 - i % 2; i <= at)
      stage.backward(arm);
    else
      stage.input_part(arm);
  for (int i = 0; i < behind; ++i) {
    stage.weight_part();
    stage.input_part(0);
  }
  for (int i = 0; i <= at; ++i) stage.weight_part();
  return stage.take();
}

}  // namespace

Schedule dualpipe_v(int stages, int, int micro_batches) {
  Schedule schedule{in_a_v(stages), {}};
  for (int stage = 0; stage < stages; ++stage) schedule.stages.push_back(order_of(stage, stages, micro_batches));
  return schedule;
}

}  // namespace trainer::strategies
