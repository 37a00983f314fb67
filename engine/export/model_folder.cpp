// The folder is read as if nothing were chosen, and again once its options are known.
#include "engine/export/model_folder.h"

#include "engine/checkpoint/tensor_store.h"

namespace trainer::exporting {

ModelFolder read_whole_folder(const std::string& path, const std::string& configs_dir) {
  ModelFolder folder = read_model_folder(path, configs_dir);
  if (folder.told.empty()) return folder;
  DiskNames all = folder.names;
  all.ignored.clear();
  const auto store = checkpoint::TensorStore::from_folder(path, all);
  Variables options;
  for (const auto& [option, tensor] : folder.told)
    if (store.find(tensor) != nullptr) options[option] = ParamValue(1.0);
  return options.empty() ? folder : read_model_folder(path, configs_dir, options);
}

ModelFolder read_trained_folder(const std::string& path, const SavedFacts& facts, const std::string& configs_dir) {
  constexpr std::string_view kWith = "model.with.";
  Variables with;
  if (facts.job)
    for (const auto& [key, value] : facts.job->settings)
      if (key.starts_with(kWith))
        if (const std::optional<ParamValue> param = value_of(yaml::parse(value, path)))
          with[key.substr(kWith.size())] = *param;
  return read_model_folder(path, configs_dir, with);
}

}  // namespace trainer::exporting
