// One stage holds the whole model: each micro-batch goes forward and at once backward, so that only one micro-batch's
// activations are alive (gradient accumulation).
#include "strategies/strategies.h"

namespace trainer::strategies {

std::vector<std::vector<Action>> single_stage(int, int, int micro_batches) {
  std::vector<std::vector<Action>> stages(1);
  for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    stages[0].push_back({Action::Kind::forward, micro_batch, 0});
    stages[0].push_back({Action::Kind::backward, micro_batch, 0});
  }
  return stages;
}

}  // namespace trainer::strategies
