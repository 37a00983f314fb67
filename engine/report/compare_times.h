// Predicted beside measured, by what was run: where a model of the machine is wrong, and by how much.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/cost/machine_model.h"
#include "engine/cost/predict.h"
#include "engine/plan/plan.h"
#include "engine/report/step_times.h"

namespace trainer::report {

/// All instructions of a step that do the same: one op on operands of the same shapes, or one kind of communication of
/// as many bytes over the same axes. Times are of one rank, as a mean over those measured. Waits for other ranks are in
/// neither: of a communication the time counts from when the last that takes part is there.
struct TimeDifference {
  std::string work;  ///< "linear f32[256,768] f32[2304,768] f32[2304] → f32[256,2304]", "all_reduce replicate 3.1 MiB"
  double count = 0;  ///< on a rank
  double predicted_us = 0, measured_us = 0;
  double floor_us = 0;  ///< no kernel could be faster: of a launch the larger of its FLOPs over the peak and its
                        ///< operands' bytes over the memory's bandwidth; 0: not known

  double difference_us() const { return measured_us - predicted_us; }
};

/// The largest difference first. `device` gives the floors: its peaks and bandwidth, not what kernels achieve of them.
/// REQUIRES: `prediction` is of the plan's step, and the traces have all ranks.
std::vector<TimeDifference> compare_times(const Plan& plan, const cost::DeviceModel& device,
                                          const cost::Prediction& prediction, const Meetings& meetings,
                                          const std::vector<RankTrace>& measured);

/// The first `most` of them as a table for people, and what the rest comes to.
std::string differences_text(const std::vector<TimeDifference>& differences, std::size_t most);

}  // namespace trainer::report
