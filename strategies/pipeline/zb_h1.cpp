// ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 2.1): 1F1B's memory and a third of its bubble.
//
// With p stages, m micro-batches and times F, B and W of a stage's forward, input part and weight part (W ≤ F):
//   bubble: (p − 1)(F + B − W) a step, where m ≥ p;
//   live activations, until the weight part: min(m, p) on every stage, 1F1B's most.
#include "strategies/pipeline/zb_h.h"
#include "strategies/strategies.h"

namespace trainer::strategies {

Schedule zb_h1(int stages, int, int micro_batches) { return zero_bubble_h(stages, micro_batches, 1); }

}  // namespace trainer::strategies
