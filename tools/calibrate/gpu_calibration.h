// What of a GPU is measured: kernels in the sizes of jobs, and its link to the host.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/core/signature.h"
#include "engine/cost/machine_model.h"
#include "engine/cost/work.h"
#include "engine/run/gpu_bench.h"

namespace trainer::tools {

struct GpuFigures {
  std::vector<cost::MeasuredWork> works;  ///< one for each kernel, by cost::exact_name
  cost::Figure host_link;                 ///< bytes/s of the slower direction
  std::vector<std::string> left_out;      ///< "attention_documents: …": kernels that could not be measured, and why
};

/// `cache_bytes`: of the GPU's last level. `begins`: called before each kernel, if set.
GpuFigures measure_gpu(GpuBench& bench, const std::vector<Signature>& kernels, std::int64_t cache_bytes,
                       const std::function<void(const cost::Work&)>& begins = {});

/// A hardware file: the figures over those of `base`, a shipped file's name or a path.
std::string gpu_hardware_text(const GpuFigures& figures, const std::string& base, const std::string& description);

}  // namespace trainer::tools
