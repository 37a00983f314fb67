// What happens to each unit of parameters in a step, read off the plan's instructions: no strategy is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer::report {

/// Collectives of a kind over the same axes that move a unit's weights, gradients or states.
struct UnitCollective {
  std::string axis;
  std::string collective;
  std::int64_t count = 0;  ///< in a step
  std::int64_t bytes = 0;  ///< of the larger side of each, added up
};

struct UnitFacts {
  int stage = 0;
  const Unit* unit = nullptr;  ///< of the plan
  std::string label;  ///< tensors_text, or, where several units would have that in common, "h.0.attn.weight … mlp.bias"
  // Ranks over which each is divided; 1: whole on every rank. Gradients: as they lie when the optimizer reads them.
  int states_over = 1, gradients_over = 1, weights_over = 1;
  std::int64_t gathers = 0;  ///< of the working copy in a step
  double gathered_share =
      0;  ///< of the step's instructions that run while a gathered copy is there; 1 where it is never let go
  std::int64_t reductions =
      0;  ///< of its gradients over data axes in a step, compressed or not: reduce-scatters where there are such
  std::vector<UnitCollective> collectives;
};

/// Of every stage, in order. `plan` outlives the result.
std::vector<UnitFacts> units_of(const Plan& plan);

/// What a unit consists of, in a few words: "h.0.*", "wte.weight", "wte.weight … ln_f.bias".
std::string tensors_text(const Unit& unit);

}  // namespace trainer::report
