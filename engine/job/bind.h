// From checked values to the typed Job.
#pragma once

#include <string>
#include <vector>

#include "engine/job/check.h"

namespace trainer {

/// Fills in a Job: each section that `checked` has no mistake in; the others stay as they are by default, of model and data what is right.
/// `path` is the job file's. A model.graph that does not exist, and values that a profile fills in, are seen to here: `checked` gets the
/// latter, `mistakes` the former.
Job bind(Checked& checked, const std::string& path, const LoadOptions& options, std::vector<Diagnostic>& mistakes);

}  // namespace trainer
