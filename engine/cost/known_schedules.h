// KnownSchedules: schedules of pipelines with what a search asks of each again and again, worked out once. Several
// threads may ask.
#pragma once

#include <tuple>
#include <vector>

#include "engine/core/once_map.h"
#include "engine/cost/candidate.h"
#include "engine/cost/moments.h"
#include "engine/plan/assemble/transfers.h"
#include "engine/plan/strategy.h"

namespace trainer::cost {

struct KnownSchedule : Schedule {
  std::vector<std::vector<Moment>> fullest;  ///< of each stage
};

class KnownSchedules {
 public:
  /// That of the candidate with so many micro-batches. Null: the schedule refuses these numbers.
  const KnownSchedule* find(const Candidate& candidate, int micro_batches);
  /// `schedule`: one that was found here.
  const OrderedTransfers& transfers_of(const KnownSchedule* schedule);

 private:
  OnceMap<std::tuple<int, int, int, int>, KnownSchedule> schedules_;
  OnceMap<const KnownSchedule*, OrderedTransfers> transfers_;
};

}  // namespace trainer::cost
