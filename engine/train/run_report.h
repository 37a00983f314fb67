// The report of a run and the times of its last step, gathered from the ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/run/executor.h"
#include "engine/train/ranks.h"
#include "engine/train/train.h"

namespace trainer {

/// Of every rank, in every rank.
std::vector<RankReport> report_ranks(const Executor& executor, std::int64_t bytes_sent, ControlChannel& channel);
void add_ranks(RunReport& report, const std::vector<RankReport>& ranks);

/// Rates and percentiles of the steps' times.
void add_times(RunReport& report, const std::vector<double>& step_ms, std::int64_t tokens_per_step);

/// Rank 0 gets when each instruction of every rank's last step ran. REQUIRES: all ranks have just left a barrier.
/// `several_machines`: they share no clock, so that their leaving it is what their times are counted from.
std::vector<RankTrace> gather_traces(Executor& executor, std::int32_t step_program,
                                     std::chrono::steady_clock::time_point step_start, bool several_machines,
                                     ControlChannel& channel);

}  // namespace trainer
