// The common shape of ZB-H1 and ZB-H2 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 2): 1F1B in which
// only the input part of a backward is on the way to the stage before, while weight parts wait. Stages near the end so
// save time at the start, just when the stages before them wait for gradients, and do that work at the end, when they
// would wait themselves.
#pragma once

#include <algorithm>

#include "strategies/pipeline/actions.h"
#include "strategies/pipeline/fill_weights.h"

namespace trainer::strategies {

/// depth 1: H1, as far ahead as 1F1B; depth 2: H2, twice as far, so that no stage ever waits for its first gradient.
/// Every stage may hold what stage 0 must: the further along a stage is, the longer it keeps its weight parts.
inline Schedule zero_bubble_h(int stages, int micro_batches, int depth) {
  Schedule order{in_loops(stages, 1), {}};
  for (int stage = 0; stage < stages; ++stage) {
    const int warm_up = std::min(micro_batches, depth * (stages - 1 - stage));
    Actions actions;
    for (int i = 0; i < warm_up; ++i) actions.forward(i, stage);
    for (int i = 0; i < micro_batches; ++i) {
      if (i + warm_up < micro_batches) actions.forward(i + warm_up, stage);
      actions.backward_input(i, stage);
    }
    order.stages.push_back(actions.take());
  }
  return fill_weights(order, depth * (stages - 1) + 1);
}

}  // namespace trainer::strategies
