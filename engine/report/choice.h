// What was chosen, why, and what else there was: for people and as JSON.
#pragma once

#include <string>

#include "engine/compile/compile.h"
#include "engine/report/json.h"

namespace trainer::report {

/// What is recomputed, as the job file has it.
Json recompute_json(const ActivationCheckpointingJob& job);

/// A list of `strategy batch activation_checkpointing predicted_ms peak_bytes exact rejected`, best first; the one
/// taken has no `rejected`. Empty where nothing was chosen.
Json alternatives_json(const CompiledJob& compiled);

/// A list of `overrides text predicted_ms`.
Json suggestions_json(const std::vector<Suggestion>& suggestions);

/// "what would be faster" and a line for each. Empty where there is none.
std::string advice_text(const std::vector<Suggestion>& advice);

/// What in a job file fixes what was chosen: `strategy:` with nothing left to `auto`, and, where something was chosen,
/// recomputation and micro-batch. YAML.
std::string fixed_text(const CompiledJob& compiled);

/// The paragraph, the table of alternatives, and what to paste into the job to fix the choice. Empty where nothing was
/// chosen.
std::string choice_text(const CompiledJob& compiled);

}  // namespace trainer::report
