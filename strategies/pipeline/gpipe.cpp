// GPipe (Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019,
// sections 2.2 and 2.3): all micro-batches go forward, then all go backward.
//
// With p stages, m micro-batches and times F and B of a stage's forward and backward:
//   bubble: (p − 1)(F + B) a step, the share (p − 1)/(m + p − 1);
//   live activations: all m micro-batches.
// Departs from the paper's figure in that micro-batches go backward in the order in which they went forward: gradients
// are then added in the order of one rank, and neither bubble nor memory changes.
#include "strategies/pipeline/actions.h"
#include "strategies/strategies.h"

namespace trainer::strategies {

Schedule gpipe(int stages, int, int micro_batches) {
  Schedule schedule{in_loops(stages, 1), {}};
  for (int stage = 0; stage < stages; ++stage) {
    Actions actions;
    for (int i = 0; i < micro_batches; ++i) actions.forward(i, stage);
    for (int i = 0; i < micro_batches; ++i) actions.backward(i, stage);
    schedule.stages.push_back(actions.take());
  }
  return schedule;
}

}  // namespace trainer::strategies
