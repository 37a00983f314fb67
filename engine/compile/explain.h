// Why a strategy was chosen, in words.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/compiled_job.h"
#include "engine/cost/predict.h"
#include "engine/cost/search.h"
#include "engine/job/job.h"

namespace trainer {

/// A candidate that was looked at.
struct Finalist {
  cost::Scored scored;
  Basis basis = Basis::score;
  cost::RoleTimes times{};  ///< of the slowest role, where its plan was played
};

/// "12% slower: 31.0 ms of communication along the tensor axis that nothing hides", "needs 96.1 GiB a rank, and there
/// are 70.0 GiB".
std::string why_not(const Finalist& loser, const Finalist& winner, std::int64_t limit_bytes, Goal goal);

/// The paragraph. `others`: best first.
std::string why(const Finalist& winner, const std::vector<Finalist>& others, const std::vector<std::string>& impossible,
                std::int64_t limit_bytes, Goal goal);

}  // namespace trainer
