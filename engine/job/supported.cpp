// The values this build cannot carry out. A line goes when the work behind it is done.
#include "engine/job/supported.h"

#include <fmt/format.h>

#include "engine/job/names.h"

namespace trainer {
namespace {

class Unsupported {
 public:
  explicit Unsupported(const LoadedJob& loaded) : loaded_(loaded), job_(loaded.job) {}

  std::vector<Diagnostic> all() {
    cluster();
    precision();
    if (job_.activation_checkpointing.mode == CheckpointingMode::automatic)
      refuse("activation_checkpointing.mode", "none, full, selective, every_n");
    return std::move(mistakes_);
  }

 private:
  void cluster() {
    if (job_.cluster.device == Device::cuda) refuse("cluster.device", "auto, cpu");
    if (job_.cluster.backend == Backend::nccl) refuse("cluster.backend", "auto, threads, mpi");
    if (job_.cluster.hardware) refuse("cluster.hardware", "auto");
  }

  void precision() {
    if (job_.precision.params != DType::f32) refuse("precision.params", "f32");
    if (job_.precision.compute == DType::f16) refuse("precision.compute", "f32, bf16");
    if (job_.precision.reduce == DType::f16) refuse("precision.reduce", "f32, bf16");
    if (job_.precision.loss_scale.mode != LossScale::Mode::none) refuse("precision.loss_scale", "none");
  }

  void refuse(std::string_view path, std::string_view can) {
    const Setting* setting = loaded_.setting(path);
    const std::string what = setting == nullptr ? "this" : setting->value;
    Diagnostic mistake = loaded_.at(path, fmt::format("{} is known but this build cannot carry it out; it can: {}", what, can));
    mistake.value.clear();  // the message has it
    mistakes_.push_back(std::move(mistake));
  }

  const LoadedJob& loaded_;
  const Job& job_;
  std::vector<Diagnostic> mistakes_;
};

}  // namespace

std::vector<Diagnostic> unsupported(const LoadedJob& loaded) { return Unsupported(loaded).all(); }

}  // namespace trainer
