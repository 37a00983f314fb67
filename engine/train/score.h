// Scoring: the log-probability of every token of given rows under the model, given those before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/train/train.h"

namespace trainer {

/// Rows of ids, each of at least one.
using Rows = std::vector<std::vector<std::int32_t>>;

/// Sets the sequence length and the batch of a job that is to score the rows of a group (row_groups.h): one length for
/// all, and as many rows side by side as make products fast.
void set_batch_for_scoring(LoadedJob& loaded, const Rows& rows);

/// Throws DataError, with the row's number, for an id that the model does not know.
void check_ids(const CompiledJob& compiled, const Rows& rows);

/// Calls take(row, logprobs) for each row in order, on rank 0: natural logarithms of each id but the first, given those
/// before it. `compiled` is of Purpose::score, of a job that set_batch_for_scoring has seen; `weights` as for
/// evaluate(). Throws as check_ids.
void score(const LoadedJob& loaded, const CompiledJob& compiled, const std::string& weights, const Rows& rows,
           const std::function<void(std::size_t row, std::span<const float> logprobs)>& take,
           const EvaluateOn& on = {});

}  // namespace trainer
