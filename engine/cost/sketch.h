// Sketch: a step without its plan. Each piece of the model is one kernel in a forward pass and two in a backward pass,
// and what the axes communicate stands beside it as it would in the plan; cost::play says how long that takes. What
// hides what, which links two communications share and which stage waits for which come out as they do for a plan, in
// a hundredth of the time that making one takes. A score knows none of that: it adds up.
#pragma once

#include "engine/cost/score.h"

namespace trainer::cost {

/// Of one thread, as its scorer.
class Sketcher {
 public:
  Sketcher(const SearchSpace& space, ProfileSource& profiles)
      : space_(space), schedules_(profiles.schedules()), scorer_(space, profiles) {}

  /// µs of a step. 0: such a step cannot be sketched (on a CPU, whose copies and communication take turns with
  /// kernels).
  double step_us(const Candidate& candidate);

  /// How many micro-batches a plan lists of the candidate's, those that its loops stand for left out.
  int listed(const Candidate& candidate);

 private:
  double played(const Candidate& candidate, const Profile& profile);

  const SearchSpace& space_;
  KnownSchedules& schedules_;
  Scorer scorer_;
};

}  // namespace trainer::cost
