// The values that this build cannot plan, and why; and those that it plans and cannot run. A line goes when the work behind it is done.
#include "engine/job/supported.h"

#include <fmt/format.h>

#include "engine/job/names.h"

namespace trainer {
namespace {

class Unsupported {
 public:
  explicit Unsupported(const LoadedJob& loaded) : loaded_(loaded), job_(loaded.job) {}

  std::vector<Diagnostic> all() {
    precision();
    if (job_.adapter && job_.adapter->magnitude)
      refuse("adapter.magnitude", "DoRA, which trains the magnitude of each row apart, is not built", "false");
    return std::move(mistakes_);
  }

 private:
  void precision() {
    if (job_.precision.params != DType::f32) refuse("precision.params", "master weights are f32", "f32");
    if (job_.precision.reduce == DType::f16) refuse("precision.reduce", "a sum of scaled gradients leaves f16 at 65504, however small each of them is", "f32, bf16");
  }

  void refuse(std::string_view path, std::string_view why, std::string_view can) {
    Diagnostic mistake = loaded_.at(path, std::string(why));
    if (const Setting* setting = loaded_.setting(path)) mistake.value = setting->value;
    mistake.allowed = can;
    mistakes_.push_back(std::move(mistake));
  }

  const LoadedJob& loaded_;
  const Job& job_;
  std::vector<Diagnostic> mistakes_;
};

}  // namespace

std::vector<Diagnostic> unsupported(const LoadedJob& loaded) { return Unsupported(loaded).all(); }

std::vector<Diagnostic> not_runnable(const LoadedJob& loaded, const std::string& no_gpu) {
  if (no_gpu.empty()) return {};
  const ClusterJob& cluster = loaded.job.cluster;
  const auto at = [&](std::string_view path, const std::string& what) {
    Diagnostic mistake = loaded.at(path, what + ": " + no_gpu + "; here the job can be planned and validated, and run with cluster.device=cpu cluster.hardware=auto");
    mistake.value.clear();
    return mistake;
  };
  if (cluster.device == Device::cuda)
    return {cluster.hardware ? at("cluster.hardware", "the job is for GPUs (" + *cluster.hardware + ")") : at("cluster.device", "the job is for GPUs")};
  if (cluster.backend == Backend::nccl) return {at("cluster.backend", "nccl is between GPUs")};
  return {};
}

}  // namespace trainer
