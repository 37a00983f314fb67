// The common shape of ZB-H1 and ZB-H2 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 2): 1F1B in which only the input
// part of a backward is on the way to the stage before, while weight parts wait, on stage s `depth` · s micro-batches long. Stages
// near the end so save time at the start, just when the stages before them wait for gradients, and do that work at the end, when
// they would wait themselves.
#pragma once

#include <algorithm>

#include "strategies/pipeline/actions.h"

namespace trainer::strategies {

/// depth 1: H1; depth 2: H2, which also runs twice as far ahead, so that no stage ever waits for its first gradient.
inline Schedule zero_bubble_h(int stages, int micro_batches, int depth) {
  Schedule schedule{in_loops(stages, 1), {}};
  for (int stage = 0; stage < stages; ++stage) {
    const int warm_up = std::min(micro_batches, depth * (stages - 1 - stage));
    const int delay = std::min(micro_batches, depth * stage);
    Actions actions;
    for (int i = 0; i < warm_up; ++i) actions.forward(i, stage);
    for (int i = 0; i < micro_batches; ++i) {
      if (i + warm_up < micro_batches) actions.forward(i + warm_up, stage);
      actions.backward_input(i, stage);
      if (i >= delay) actions.backward_weight(i - delay, stage);
    }
    for (int i = micro_batches - delay; i < micro_batches; ++i) actions.backward_weight(i, stage);
    schedule.stages.push_back(actions.take());
  }
  return schedule;
}

}  // namespace trainer::strategies
