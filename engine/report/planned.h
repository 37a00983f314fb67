// One job as `trainer plan` shows it: loaded, compiled, predicted, with advice. One document for a single job, a
// comparison and a sweep.
#pragma once

#include <optional>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/report/json.h"
#include "engine/report/prediction.h"

namespace trainer::report {

struct Planned {
  LoadedJob loaded;
  CompiledJob compiled;
  PredictedStep predicted;
  std::vector<Suggestion> advice;           ///< what would be faster
  std::optional<WithoutBf16> without_bf16;  ///< what bf16 costs on a processor without instructions for it
};

/// The same with every loop written out, for what shows each instruction: pages and timelines.
Planned written_out(const Planned& one);

/// The document of plan --json.
Json plan_json(const Planned& one);

}  // namespace trainer::report
