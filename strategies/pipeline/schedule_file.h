// A pipeline schedule from a file, in the notation of print_table: a line for each stage, in its order of actions, with
// cells such as F0.1 (forward of micro-batch 0 in chunk 1), B0.1 (backward), I0.1 and W0.1 (its input and weight part).
// Chunks are those of the whole model, in forward order; each lives on the stage that runs it. Empty cells and blank
// lines are skipped, and so is what follows a #.
#pragma once

#include <string>
#include <string_view>

#include "engine/plan/strategy.h"

namespace trainer::strategies {

struct GivenSchedule {
  Schedule schedule;
  int micro_batches = 0;

  int stages() const { return static_cast<int>(schedule.stages.size()); }
  int chunks() const { return static_cast<int>(schedule.stage_of_chunk.size()); }
};

/// Where some backward is in two parts, the undivided ones become an input part with its weight part behind it. Raises
/// DataError "path:line:column: what" unless every micro-batch passes every chunk forward and backward once, in order,
/// every stage has equally many chunks, and no stage waits for ever.
GivenSchedule read_schedule(std::string_view text, const std::string& path);

}  // namespace trainer::strategies
