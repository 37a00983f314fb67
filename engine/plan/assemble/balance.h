// Routers that a bias balances: what a step does for them around its passes, whose nodes count choices. Behind the last
// pass the counts of all ranks are summed, and the bias of each router moves by them, once a step.
//
// Source: Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", 2024, algorithm 1.
#pragma once

#include "engine/plan/assemble/emitter.h"

namespace trainer {

/// No choice has been counted.
void begin_counts(Emitter& emit, const GraphMemory& memory);

/// REQUIRES: the scalars of the step say whether it is made.
void balance_experts(Emitter& emit, const GraphMemory& memory, const Role& role);

}  // namespace trainer
