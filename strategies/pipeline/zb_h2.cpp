// ZB-H2 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 2.2): no bubble, for twice 1F1B's memory.
//
// With p stages, m micro-batches and times F, B and W of a stage's forward, input part and weight part (W ≤ F):
//   bubble: (p − 1)(F + B − 2W) between a stage's first action and its last, where m ≥ 2p − 1; 0 where the three are
//   equal; live activations, until the weight part: min(m, 2p − 1) on every stage.
// Stages end as they began, F after each other. If they must then wait for all (a norm to clip by, a check for
// overflow), they wait up to (p − 1)F; the paper updates first and checks after (its section 4). With m < 2p − 1 a step
// still idles no more than ZB-H1's.
#include "strategies/pipeline/zb_h.h"
#include "strategies/strategies.h"

namespace trainer::strategies {

Schedule zb_h2(int stages, int, int micro_batches) { return zero_bubble_h(stages, micro_batches, 2); }

}  // namespace trainer::strategies
