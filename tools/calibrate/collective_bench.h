// Times of collectives between ranks as threads, and what they cost kernels beside them, measured as a step has them:
// through the executor, with what handing over to the communication stream and back takes.
#pragma once

#include <cstdint>
#include <string>

#include "engine/cost/machine_model.h"

namespace trainer::tools {

/// Microseconds of `collective` ("all_reduce" …, "send") of `bytes` on the larger side among `ranks` ranks of `threads`
/// threads each: the median of several rounds and half their interquartile range. `bytes` is a multiple of 64 · ranks.
cost::Figure collective_time(const std::string& collective, int ranks, int threads, std::int64_t bytes,
                             double budget_ms);

/// Microseconds from one of the executor's instructions to the next, beyond what the kernel itself takes.
cost::Figure launch_time();

/// What overlap_slowdown returns at most. Ranks that keep all cores busy compute next to nothing while they
/// communicate.
inline constexpr double kMostSlowdown = 10;

/// By how much kernels take longer while an all-reduce runs beside them, where ranks share the machine's cores with it.
/// 1 to kMostSlowdown.
double overlap_slowdown(int ranks, int threads, double budget_ms);

}  // namespace trainer::tools
