// What was not finite, and where: found by each rank, told by rank 0.
#pragma once

#include <string>

#include "engine/run/executor.h"
#include "engine/train/ranks.h"
#include "engine/train/weights.h"

namespace trainer {

/// The step again, node by node: where it began. Called by every rank; all get the same sentence.
std::string locate_non_finite(Executor& executor, std::int32_t step_program, ControlChannel& channel);

/// The first master weight of those that this rank saves that is not finite, as "h.0.attn.c_attn.weight (element 12) is
/// nan"; empty if all are finite.
std::string non_finite_weight(const LoadedRank& loaded);
/// The same of all ranks. Called by every rank.
std::string non_finite_weight(const LoadedRank& loaded, ControlChannel& channel);

}  // namespace trainer
