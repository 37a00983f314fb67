// Prediction: a plan's step played on a machine. Streams run in issue order, an instruction starts when its stream is
// free, what it waits for (Issued::after) is done, and, if it communicates, all that it meets on other stages are
// ready. One rank of each role is played: the others of a role do the same at the same time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/op.h"
#include "engine/cost/cost_model.h"
#include "engine/plan/plan.h"

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

  double sum() const { return compute_us + optimizer_us + exposed_us + bubble_us + input_us; }
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
};

/// Plays `program` of every role; of loops some passes, every further one taking as long as the mean of the last of
/// these. Throws Bug where there is no such program or its communications do not match (a verified plan's do).
///
/// While bytes are on their way kernels take CostModel::overlap_slowdown times as long, for the time that both run;
/// messages between two GPUs hold up no kernels. Of several messages of a rank in one direction each waits for the one
/// before. On a CPU copies take their turns with kernels, as its executor has them do.
///
/// The interval is of the slowest role. Estimates of a class (products, attention, all other kernels, each kind of
/// communication over the same axes) err together, so their half widths are summed; classes do not, so those sums are
/// added in quadrature. Of communication that is hidden nothing counts, of exposed at most what is exposed makes a step
/// shorter.
Prediction predict(const Plan& plan, const CostModel& model, ProgramKind program = ProgramKind::step);

}  // namespace trainer::cost
