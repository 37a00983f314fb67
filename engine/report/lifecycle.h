// Memory of a rank at the points of a run's life: what of the plan's allocation each uses, and what it takes of host
// memory beside that.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/report/json.h"

namespace trainer::report {

struct LifecyclePoint {
  std::string point;        ///< start, step, average, evaluate, prompt, sample, save, resume
  std::int64_t bytes = 0;   ///< of host memory beside the allocation, at most (engine/train/staging.h)
  std::int64_t inside = 0;  ///< of the allocation: what is alive when most is, of the fullest rank
  std::string what;         ///< for people: what the bytes beside it are
};

/// In the order of a run. Points that the job has not (no validation data, no checkpoint.dir) are left out.
std::vector<LifecyclePoint> lifecycle_of(const LoadedJob& loaded, const CompiledJob& compiled);
Json lifecycle_json(const std::vector<LifecyclePoint>& points);

/// What checkpoints take of the disk, and how they are written (engine/train/checkpoint_plan.h); null: none are.
Json checkpoint_json(const LoadedJob& loaded, const CompiledJob& compiled);
std::string checkpoint_line(const LoadedJob& loaded, const CompiledJob& compiled);

}  // namespace trainer::report
