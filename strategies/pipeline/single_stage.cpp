// One stage holds the whole model: each micro-batch goes forward and at once backward, so that only one micro-batch's
// activations are alive (gradient accumulation).
#include "strategies/strategies.h"

namespace trainer::strategies {

Schedule single_stage(int, int, int micro_batches) {
  Schedule schedule{{0}, {{}}};
  for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    schedule.stages[0].push_back({Action::Kind::forward, micro_batch, 0});
    schedule.stages[0].push_back({Action::Kind::backward, micro_batch, 0});
  }
  return schedule;
}

}  // namespace trainer::strategies
