// The model folders of tests/goldens/folders: as jobs, their tensors, and what is said of a bad one.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/checkpoint/tensor_store.h"
#include "engine/compile/compile.h"
#include "engine/core/error.h"
#include "engine/job/job.h"
#include "kernels/cpu/table.h"
#include "tests/goldens/golden.h"

namespace trainer::test {

inline std::string golden(const std::string& name) { return goldens::folder() + "/folders/" + name; }

inline std::string configs() { return goldens::folder() + "/../../configs"; }

inline LoadedJob job_of(const std::string& folder, const std::vector<std::string>& overrides = {}) {
  LoadedJob loaded = load_job(folder, overrides, {.configs_dir = configs()});
  loaded.job.cluster.devices_per_node = loaded.job.cluster.devices_per_node.value_or(1);
  return loaded;
}

/// The mistakes that loading a folder throws.
inline std::vector<Diagnostic> mistakes_of(const std::string& folder) {
  try {
    load_job(folder, {}, {.configs_dir = configs()});
  } catch (const JobError& error) {
    return error.diagnostics();
  }
  return {};
}

inline reference::Tensor read_tensor(const checkpoint::TensorStore& store, const std::string& name) {
  const checkpoint::TensorInfo* info = store.find(name);
  REQUIRE_MESSAGE(info != nullptr, name);
  std::vector<float> values(static_cast<std::size_t>(info->shape.elements()));
  store.read(name, 0, info->shape.elements(), values.data());
  reference::Tensor tensor(info->shape);
  std::copy(values.begin(), values.end(), tensor.data.begin());
  return tensor;
}

/// For so many threads of this processor.
inline CompiledJob compiled_here(const LoadedJob& loaded, Purpose purpose, int threads = 1) {
  const kernels::cpu::CpuTarget target({.isa = kernels::cpu::detect_isa(), .threads = threads});
  return compile(loaded, {.target = &target, .memory_bytes = std::int64_t{1} << 30, .threads = threads}, purpose);
}

}  // namespace trainer::test
