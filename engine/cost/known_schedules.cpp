// Schedules by their numbers.
#include "engine/cost/known_schedules.h"

#include <utility>

#include "strategies/strategies.h"

namespace trainer::cost {

const KnownSchedule* KnownSchedules::find(const Candidate& c, int micro_batches) {
  const int stages = c.size(Axis::pipeline);
  const KnownSchedule& known =
      schedules_.get({static_cast<int>(c.schedule), stages, c.virtual_stages, micro_batches}, [&]() -> KnownSchedule {
        const strategies::PipelineEntry& entry = strategies::pipeline_schedule(c.schedule, stages);
        if (entry.refuses(stages, c.virtual_stages, micro_batches)) return {};
        Schedule made = entry.make(stages, c.virtual_stages, micro_batches);
        std::vector<std::vector<Moment>> fullest = fullest_moments(made);
        return {std::move(made), std::move(fullest)};
      });
  return known.stages.empty() ? nullptr : &known;
}

const OrderedTransfers& KnownSchedules::transfers_of(const KnownSchedule* schedule) {
  return transfers_.get(schedule, [&] { return order_transfers(*schedule); });
}

}  // namespace trainer::cost
