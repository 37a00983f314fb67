// The list of strategies by name. One file each in data/ and pipeline/; adding one is its file and a line here.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/strategy.h"

namespace trainer::strategies {

/// The data strategy of that name, or null where this build has none.
std::unique_ptr<DataStrategy> data_strategy(std::string_view name);
std::vector<std::string_view> data_strategy_names();

/// The pipeline schedule of that name, or null.
ScheduleFunction pipeline_schedule(std::string_view name);

// What data_strategy chooses from.
std::unique_ptr<DataStrategy> make_ddp();

// What pipeline_schedule chooses from.
Schedule single_stage(int stages, int virtual_stages, int micro_batches);

}  // namespace trainer::strategies
