// Prediction: how long a program of a plan takes, and where that time goes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/op.h"
#include "engine/cost/estimate.h"

namespace trainer::cost {

/// When an instruction runs, µs from the program's start. What communicates begins when it is issued, as it is
/// measured, and may wait.
struct Span {
  double begin = 0;
  double end = 0;
  double waited = 0;  ///< of that, for other stages
};

/// Where the time of one role's step goes; adds up to `step_us`.
struct RoleTimes {
  double compute_us = 0;    ///< kernels of the model
  double optimizer_us = 0;  ///< norm, update, packing, and what nothing hides of the communication between them
  double exposed_us = 0;    ///< communication while no kernel runs
  double bubble_us = 0;     ///< waits for other stages
  double input_us = 0;      ///< copies of the batch while nothing else runs
  double offload_us = 0;    ///< moves between the device and other spaces, while nothing else runs

  double sum() const { return compute_us + optimizer_us + exposed_us + bubble_us + input_us + offload_us; }
};

/// Communication of one kind over the same axes by one rank.
struct CommunicationTime {
  std::string axis;        ///< as traffic_of names it
  std::string collective;  ///< its kind, or "send"
  std::int64_t count = 0;
  double total_us = 0;    ///< under way, waits for other stages aside
  double exposed_us = 0;  ///< of that, while no kernel runs
};

/// Kernels of one op on one rank.
struct KernelTime {
  Op op = Op::zero;
  std::int64_t count = 0;
  double us = 0;
  Bound bound = Bound::memory;  ///< of most of that time
};

struct Prediction {
  double step_us = 0;  ///< until the last role ends
  double low_us = 0, high_us = 0;
  std::size_t slowest = 0;  ///< role that is busiest
  std::vector<RoleTimes> roles;
  std::vector<CommunicationTime> communication;  ///< of the slowest role, the most exposed first
  std::vector<KernelTime> kernels;               ///< of the slowest role, the longest first
  std::vector<std::vector<Span>>
      spans;  ///< [role][instruction of the program]; of a program with loops none: play the unrolled plan

  /// Half the interval, as a share of the step.
  double spread() const { return (high_us - low_us) / 2 / std::max(1e-9, step_us); }
};

}  // namespace trainer::cost
