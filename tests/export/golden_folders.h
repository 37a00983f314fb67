// What tests of exports share: golden folders, and the values of their tensors.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/core/narrow.h"
#include "engine/export/export.h"
#include "engine/job/family.h"
#include "tests/goldens/golden.h"
#include "tests/temporary.h"

namespace trainer::tests {

inline std::string golden(const std::string& name) { return goldens::folder() + "/folders/" + name; }
inline std::string configs() { return goldens::folder() + "/../../configs"; }

inline exporting::Options options_for(const std::string& from, const std::string& to) {
  exporting::Options options;
  options.checkpoint = from;
  options.out = to;
  options.configs_dir = configs();
  return options;
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

/// A copy of a golden folder whose config.json has `to` in place of `from`.
inline std::string changed(const TemporaryFolder& folder, const std::string& name, const std::string& from,
                           const std::string& to) {
  folder.write(name + "/config.json", replaced(contents_of(golden(name) + "/config.json"), from, to));
  std::filesystem::copy_file(golden(name) + "/model.safetensors", folder.path(name + "/model.safetensors"));
  return folder.path(name);
}

inline checkpoint::TensorStore store_of(const std::string& folder) {
  return checkpoint::TensorStore::from_folder(folder, read_model_folder(folder, configs()).names);
}

inline std::vector<float> values_of(const checkpoint::TensorStore& store, const std::string& name) {
  const checkpoint::TensorInfo* info = store.find(name);
  REQUIRE_MESSAGE(info != nullptr, name);
  std::vector<std::byte> raw(static_cast<std::size_t>(info->shape.elements() * size_of(info->dtype)));
  store.read(name, 0, info->shape.elements(), raw.data());
  std::vector<float> values(static_cast<std::size_t>(info->shape.elements()));
  to_f32(info->dtype, raw.data(), info->shape.elements(), values.data());
  return values;
}

}  // namespace trainer::tests
