// A strategy in the explicit form of a job file, with every `auto` of it decided: what `trainer plan --json` prints,
// and `strategy:` takes back to the same plan on as many ranks.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/core/mesh.h"
#include "engine/job/job.h"

namespace trainer::report {

/// Only keys that have an effect on `mesh`: an axis of one rank is left out. REQUIRES: `mesh` is the strategy's.
nlohmann::ordered_json explicit_strategy(const StrategyJob& strategy, const Mesh& mesh);

}  // namespace trainer::report
