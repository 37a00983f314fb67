// Model folders as `export` reads them: with the options of their family that say which tensors are the model's.
#pragma once

#include <string>

#include "engine/job/family.h"
#include "engine/train/saved_facts.h"

namespace trainer::exporting {

/// A folder's own tensors tell its options: what it has is exported.
ModelFolder read_whole_folder(const std::string& path, const std::string& configs_dir);

/// The folder whose config.json is in `path`, with the options with which the job of `facts` trained it.
ModelFolder read_trained_folder(const std::string& path, const SavedFacts& facts, const std::string& configs_dir);

}  // namespace trainer::exporting
