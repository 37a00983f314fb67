// What is known of a job's checkpoints before the run: how large one is, whether its files are written behind the step,
// and whether the file system has room for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/compile/compile.h"
#include "engine/train/staging.h"

namespace trainer {

struct CheckpointPlan {
  std::int64_t bytes = 0;            ///< of one: its tensors, and an estimate of what describes them
  std::optional<std::int64_t> kept;  ///< how many stay, that of keep_best among them; none: all
  bool behind = false;               ///< files are written while the next steps run
  std::int64_t copy = 0;             ///< behind: of the rank that copies most, bytes of host memory; else 0
  std::int64_t saving = 0;           ///< bytes that a save takes of host memory at most, the copy among them
  std::string why_in_step;           ///< why it saves in the step although the job asks for behind; empty otherwise
};

/// Files are written behind the step where checkpoint.behind says so and the copy fits into the host's memory beside
/// the plan's allocation. REQUIRES: checkpoint.dir.
CheckpointPlan checkpoint_plan(const Job& job, const CompiledJob& compiled);

/// What is wrong with the space that is free for the checkpoints of a run that goes on after `step` steps; empty if
/// nothing is, or if the run saves nothing. Room is needed for those that checkpoint.keep will keep, and for one more
/// while it is written; what is there already counts. Where all are kept, room for one is enough. Throws IoError where
/// the system does not tell.
std::string lack_of_space(const Job& job, const CompiledJob& compiled, std::int64_t step);

}  // namespace trainer
