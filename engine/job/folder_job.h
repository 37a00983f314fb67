// The job that a model folder stands for where a job is expected: the model as it is, defaults for the rest.
#pragma once

#include <string>
#include <vector>

#include "engine/job/job.h"

namespace trainer {

/// "Qwen2.5-0.5B", of whatever path to it.
std::string name_of_folder(const std::string& path);

/// As YAML, with comments. `overrides` decide where the ranks are, and so what they compute in. Throws as
/// read_model_folder does.
std::string job_of_folder(const std::string& path, const std::vector<std::string>& overrides,
                          const LoadOptions& options);

/// The job that an adapter of PEFT in the folder `path` stands for, beside the model folder `base`: that of the base,
/// with the adapter.
std::string job_of_peft_folder(const std::string& path, const std::string& base,
                               const std::vector<std::string>& overrides, const LoadOptions& options);

}  // namespace trainer
