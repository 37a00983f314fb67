// The model folders of tests/goldens/folders as jobs.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/compile.h"
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

/// For so many threads of this processor.
inline CompiledJob compiled_here(const LoadedJob& loaded, Purpose purpose, int threads = 1) {
  const kernels::cpu::CpuTarget target({.isa = kernels::cpu::detect_isa(), .threads = threads});
  return compile(loaded, {.target = &target, .memory_bytes = std::int64_t{1} << 30, .threads = threads}, purpose);
}

}  // namespace trainer::test
