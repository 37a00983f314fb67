// Prediction: a plan's step played on a machine. Streams run in issue order, an instruction starts when its stream is free, what it waits
// for (Issued::after) is done, and, if it communicates, all that it meets on other stages are ready. One rank of each role is played:
// the others of a role do the same at the same time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/cost/cost_model.h"
#include "engine/plan/plan.h"

namespace trainer::cost {

/// When an instruction runs, µs from the program's start.
struct Span {
  double begin = 0;
  double end = 0;
};

/// Where the time of one role's step goes; adds up to `step_us`.
struct RoleTimes {
  double compute_us = 0;  ///< kernels of the model
  double optimizer_us = 0;  ///< from the end of the last backward to the end: norm, update, packing, and what nothing hides of gathers there
  double exposed_us = 0;  ///< communication while no kernel runs
  double bubble_us = 0;   ///< waits for other stages
  double input_us = 0;    ///< copies of the batch while nothing else runs
};

struct Prediction {
  double step_us = 0;           ///< of the slowest role
  double low_us = 0, high_us = 0;
  std::size_t slowest = 0;      ///< role that is busiest
  std::vector<RoleTimes> roles;
  std::vector<std::vector<Span>> spans;  ///< [role][instruction of the program]
};

/// Plays `program` of every role. Throws Bug where the plan's communications do not match (a verified plan's do).
Prediction predict(const Plan& plan, const CostModel& model, std::string_view program = "step");

}  // namespace trainer::cost
