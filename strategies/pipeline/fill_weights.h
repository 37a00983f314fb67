// Weight parts where a stage would wait (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 3.1, of which
// this is the last step).
#pragma once

#include "engine/plan/strategy.h"

namespace trainer::strategies {

/// `order` with a weight part for each of its input parts: in every slot in which a stage has nothing ready, and in
/// place of a forward that would make more than `most_live` chunks of one stage live; what is left stands at the end.
/// Slots are equal for all actions. REQUIRES: `order` has forwards and input parts only, ends, and no stage has
/// `most_live` forwards ahead of its input parts before another forward.
Schedule fill_weights(const Schedule& order, int most_live);

}  // namespace trainer::strategies
