// The values that this build cannot plan, and why; and those that it plans and cannot run. A line goes when the work
// behind it is done.
#include "engine/job/unsupported.h"

namespace trainer {

std::vector<Diagnostic> unsupported(const LoadedJob& loaded) {
  std::vector<Diagnostic> mistakes;
  const PrecisionJob& precision = loaded.job.precision;
  if (precision.params != DType::f32)
    mistakes.push_back(loaded.at("precision.params", "master weights are f32", "f32"));
  if (precision.reduce == DType::f16)
    mistakes.push_back(loaded.at("precision.reduce",
                                 "a sum of scaled gradients leaves f16 at 65504, however small each of them is",
                                 "f32, bf16"));
  return mistakes;
}

std::vector<Diagnostic> not_runnable(const LoadedJob& loaded, const std::string& no_gpu) {
  if (no_gpu.empty()) return {};
  const ClusterJob& cluster = loaded.job.cluster;
  const auto at = [&](std::string_view path, const std::string& what) {
    Diagnostic mistake = loaded.at(
        path, what + ": " + no_gpu +
                  "; here the job can be planned and validated, and run with cluster.device=cpu cluster.hardware=auto");
    mistake.value.clear();
    return mistake;
  };
  if (cluster.device == Device::cuda)
    return {cluster.hardware ? at("cluster.hardware", "the job is for GPUs (" + *cluster.hardware + ")")
                             : at("cluster.device", "the job is for GPUs")};
  if (cluster.backend == Backend::nccl) return {at("cluster.backend", "nccl is between GPUs")};
  return {};
}

}  // namespace trainer
