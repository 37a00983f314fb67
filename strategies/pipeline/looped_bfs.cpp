// Looped, breadth first (Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2023, section 4): each stage holds v
// chunks, p chunks apart, and takes all micro-batches through a chunk before it turns to the next; backward the same in
// reverse. A chunk's parameters are so used in one go in each direction: sharded parameters are gathered, and gradients
// reduced, once a step and chunk, and each reduction has the chunks before it to hide behind.
//
// With p stages, v chunks a stage, m micro-batches and times F and B of all of a stage's chunks:
//   bubble: (p − 1)(F + B)/v a step, (p − 1)/(v m) of the ideal time, where m ≥ p; below that a stage waits p − m
//   forwards and backwards more at every turn; live activations: all m v chunks.
#include "strategies/pipeline/actions.h"
#include "strategies/strategies.h"

namespace trainer::strategies {

Schedule looped_bfs(int stages, int virtual_stages, int micro_batches) {
  Schedule schedule{in_loops(stages, virtual_stages), {}};
  for (int stage = 0; stage < stages; ++stage) {
    Actions actions;
    for (int loop = 0; loop < virtual_stages; ++loop)
      for (int i = 0; i < micro_batches; ++i) actions.forward(i, loop * stages + stage);
    for (int loop = virtual_stages - 1; loop >= 0; --loop)
      for (int i = 0; i < micro_batches; ++i) actions.backward(i, loop * stages + stage);
    schedule.stages.push_back(actions.take());
  }
  return schedule;
}

}  // namespace trainer::strategies
