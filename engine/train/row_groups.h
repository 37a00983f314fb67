// Which rows are scored side by side. Rows of a plan are padded to its longest, so rows of very different lengths take
// plans of their own; but each plan is compiled and loads the weights, so there are few of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/job/job.h"

namespace trainer {

/// Ends of consecutive runs of `lengths` (ascending): those for which the sum of (rows of a run) · (its longest) +
/// `per_run` for each run is least, but for lengths beyond 64, which are told apart only to a 32nd of them.
std::vector<std::size_t> cheapest_runs(std::span<const std::int64_t> lengths, std::int64_t per_run);

/// Indices of rows in groups, each for a plan of its own: of the rows at whose lengths the model is the same
/// (engine/compile/lengths.h), those of similar length. The group of the first row is the first.
std::vector<std::vector<std::size_t>> groups_of_rows(const LoadedJob& loaded,
                                                     const std::vector<std::vector<std::int32_t>>& rows);

}  // namespace trainer
