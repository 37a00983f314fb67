// What a job may ask for and this build cannot carry out yet.
#pragma once

#include <vector>

#include "engine/job/job.h"

namespace trainer {

/// One mistake for every value that is right by the grammar and beyond this build, each located at the value.
std::vector<Diagnostic> unsupported(const LoadedJob& loaded);

}  // namespace trainer
