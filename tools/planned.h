// One job as `trainer plan` shows it: loaded, compiled, predicted, with advice. One way for a single job, a comparison and a sweep.
#pragma once

#include <vector>

#include "tools/command.h"
#include "tools/prediction.h"

namespace trainer::tools {

struct Planned {
  LoadedJob loaded;
  CompiledJob compiled;
  PredictedStep predicted;
  std::vector<Suggestion> advice;  ///< what would be faster
};

/// For the machine that the job's cluster names. Throws JobError; a plan that does not fit is no error.
Planned planned(LoadedJob loaded);

/// The document of plan --json.
Json plan_json(const Planned& one);

/// Says on stderr why a plan does not fit; returns the exit code.
int tell_fit(const Planned& one);

}  // namespace trainer::tools
