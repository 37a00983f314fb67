// A whole schedule played by the times of its actions, for pipelines too long to plan: 64 stages × 512 micro-batches take some
// hundredths of a second. The play is that of predict.h, on a step in which each action is one kernel and transfers are those that a plan
// has. What is inside an action (kernels, collectives over the tensor axis) must have been added up.
#pragma once

#include <cstdint>
#include <span>

#include "engine/cost/predict.h"
#include "engine/plan/strategy.h"

namespace trainer::cost {

/// Of one action of one chunk and one micro-batch on one rank.
struct ActionTime {
  double us = 0;
  double exposed_us = 0;  ///< of that, communication that no kernel hides
  double spread = 0;      ///< half width of its interval, as a share
};

/// Of one chunk; an undivided backward takes both its parts.
struct ChunkTimes {
  ActionTime forward, backward_input, backward_weight;
  std::int64_t activation_bytes = 0;  ///< that a rank sends to the chunk behind
  std::int64_t gradient_bytes = 0;    ///< and gets back
};

/// What a stage does besides, once a step.
struct FixedTimes {
  double before_us = 0;  ///< before its first action
  double reduce_us = 0;  ///< communication after its last action: of gradients, what nothing hides
  double update_us = 0;  ///< after that, once all stages know the norm
};

/// `chunks`: of every chunk of the schedule; `fixed`: of every stage. The prediction's spans are of the condensed step's instructions, its
/// kernels are no ops of their own. REQUIRES: the schedule comes to its end.
Prediction predict_pipeline(const Schedule& schedule, std::span<const ChunkTimes> chunks, std::span<const FixedTimes> fixed,
                            const CostModel& model);

}  // namespace trainer::cost
