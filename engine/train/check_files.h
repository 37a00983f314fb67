// What a job's files are worth before it runs: `trainer validate --files`. The same checks, with the same words, end
// `trainer run` before its first step; here all mistakes are collected, and every token id is looked at.
#pragma once

#include <vector>

#include "engine/compile/compile.h"

namespace trainer {

struct FileProblems {
  std::vector<Diagnostic> diagnostics;  ///< in the job's order of keys, each at its key
  bool unreadable = false;              ///< one of them is the system's refusal: exit code 74, not 65
};

/// Opens data.train, data.val and model.init_from, and asks for the space that checkpoints need. `compiled` is of
/// Purpose::train. Raises nothing that a file is the reason of.
FileProblems check_files(const LoadedJob& loaded, const CompiledJob& compiled);

}  // namespace trainer
