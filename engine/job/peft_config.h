// adapter_config.json: how PEFT (Hugging Face) describes an adapter that it saved, read as the sections `adapter` and
// `trainable` of a job. Every key of the file is used, known not to matter, or a mistake at its line, because an
// adapter whose config is not understood would compute something else. Source: peft 0.21, tuners/lora/config.py.
#pragma once

#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/job/yaml.h"

namespace trainer {

inline constexpr const char *kPeftConfig = "adapter_config.json", *kPeftWeights = "adapter_model.safetensors";
/// What the names of its tensors begin with, before the path of a module.
inline constexpr const char* kPeftPrefix = "base_model.model.";

struct PeftConfig {
  /// A key of a job's `adapter` and its value, at the value's place in adapter_config.json.
  struct Value {
    std::string key;
    yaml::Node node;
    bool must_agree;  ///< whether the adapter's tensors mean something else under another value
  };
  std::vector<Value> values;
  std::string base;  ///< base_model_name_or_path; empty: it does not say
  /// Parameters that were trained whole beside the adapter, by the model's names: those of modules_to_save that
  /// adapter_model.safetensors has. Sorted.
  std::vector<std::string> whole;
};

/// Whether it is a folder with an adapter_config.json.
bool is_peft_folder(const std::string& path);

/// `prefixes`: what the model's names on disk may begin with (DiskNames). `has_targets`: the job says itself which
/// linears are adapted, so that target_modules and its companions are not needed. Throws JobError with every mistake,
/// at its place in adapter_config.json; IoError where that cannot be read.
PeftConfig read_peft_config(const std::string& folder, const std::vector<std::string>& prefixes, bool has_targets);

/// The prefixes of an adapter's tensors, of a model whose names on disk may begin with `prefixes`.
std::vector<std::string> peft_prefixes(const std::vector<std::string>& prefixes);

}  // namespace trainer
