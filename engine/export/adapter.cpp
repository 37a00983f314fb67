// What a checkpoint's job, or adapter_config.json, says of an adapter.
#include "engine/export/adapter.h"

#include <cmath>
#include <set>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/export/model_folder.h"
#include "engine/job/peft_config.h"
#include "engine/job/yaml.h"
#include "engine/transform/dpo.h"

namespace trainer::exporting {
namespace {

yaml::Node setting(const SavedFacts& facts, std::string_view key, const std::string& path) {
  if (facts.job)
    for (const auto& [name, value] : facts.job->settings)
      if (name == key) return yaml::parse(value, path);
  throw DataError(path + ": the checkpoint does not say " + std::string(key) + " of its adapter");
}

void require_base(const std::string& base) {
  if (!exists(base)) throw DataError(base + ": the base of the adapter is not there; --base names where it is");
}

}  // namespace

double Adapter::scale() const {
  const auto number = static_cast<double>(rank);
  return alpha / (scaled_by_root ? std::sqrt(number) : number);
}

std::vector<checkpoint::TensorInfo> model_tensors(const checkpoint::Manifest& manifest) {
  std::vector<checkpoint::TensorInfo> tensors;
  for (const checkpoint::StoredTensor& tensor : manifest.tensors) {
    const bool of_model = !tensor.pieces.empty() && manifest.files[tensor.pieces[0].file].name.starts_with("model");
    if (of_model) tensors.push_back(tensor.info);
  }
  // What training compared the model with is no part of it.
  std::set<std::string, std::less<>> names;
  for (const checkpoint::TensorInfo& info : tensors) names.insert(info.name);
  std::erase_if(tensors, [&](const checkpoint::TensorInfo& info) {
    return info.name.starts_with(kReferencePrefix) && names.contains(info.name.substr(kReferencePrefix.size()));
  });
  return tensors;
}

Adapter adapter_of_checkpoint(WeightSource weights, const SavedFacts& facts, const Options& options) {
  const std::string path = weights.path;
  std::vector<checkpoint::TensorInfo> tensors = model_tensors(*weights.manifest);
  Adapter adapter{.weights = std::move(weights), .tensors = std::move(tensors), .base = {}, .saved = facts.base};
  adapter.rank = setting(facts, "adapter.rank", path).as_integer().value_or(0);
  adapter.alpha = setting(facts, "adapter.alpha", path).as_number().value_or(0);
  adapter.dropout = setting(facts, "adapter.dropout", path).as_number().value_or(0);
  adapter.scaled_by_root = setting(facts, "adapter.scaled_by_root", path).as_bool().value_or(false);
  adapter.magnitude = setting(facts, "adapter.magnitude", path).as_bool().value_or(false);
  if (adapter.rank < 1) throw DataError(path + ": the checkpoint does not say the rank of its adapter");
  adapter.base = options.base.empty() ? facts.base->from : options.base;
  if (exists(path + "/config.json"))
    adapter.folder = read_trained_folder(path, facts, options.configs_dir);
  else if (is_model_folder(adapter.base))
    adapter.folder = read_trained_folder(adapter.base, facts, options.configs_dir);
  return adapter;
}

Adapter adapter_of_peft_folder(const Options& options) {
  const std::string& path = options.checkpoint;
  const std::string base = options.base.empty() ? read_peft_config(path, {}, true).base : options.base;
  if (base.empty()) throw DataError(path + ": does not say what its base is; --base names it");
  require_base(base);
  std::optional<ModelFolder> folder;
  if (is_model_folder(base)) folder = read_whole_folder(base, options.configs_dir);
  const DiskNames names = folder ? folder->names : DiskNames();
  const PeftConfig config = read_peft_config(path, names.prefixes, true);
  WeightSource weights = open_weights(path, names);
  if (!weights.tensors.foreign().empty())
    throw DataError(path + ": has a tensor that cannot be read: " + weights.tensors.foreign().front());
  std::vector<checkpoint::TensorInfo> tensors = weights.tensors.tensors();
  Adapter adapter{.weights = std::move(weights),
                  .tensors = std::move(tensors),
                  .base = base,
                  .saved = {},
                  .folder = std::move(folder)};
  for (const PeftConfig::Value& value : config.values) {
    if (value.key == "rank") adapter.rank = *value.node.as_integer();
    if (value.key == "alpha") adapter.alpha = *value.node.as_number();
    if (value.key == "dropout") adapter.dropout = *value.node.as_number();
    if (value.key == "scaled_by_root") adapter.scaled_by_root = *value.node.as_bool();
    if (value.key == "magnitude") adapter.magnitude = *value.node.as_bool();
  }
  return adapter;
}

}  // namespace trainer::exporting
