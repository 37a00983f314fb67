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
    strategy();
    cluster();
    precision();
    if (job_.activation_checkpointing.mode == CheckpointingMode::automatic)
      refuse("activation_checkpointing.mode", "none, full, selective, every_n");
    return std::move(mistakes_);
  }

 private:
  void strategy() {
    const StrategyJob& strategy = job_.strategy;
    const bool named = loaded_.setting("strategy") != nullptr;
    if (strategy.data.kind != DataKind::ddp) refuse(named ? "strategy" : "strategy.data.kind", named ? "auto, ddp" : "ddp");
    if (!strategy.tensor.degree) refuse("strategy", "auto, ddp");
    if (!strategy.pipeline.degree) refuse("strategy", "auto, ddp");
    if (strategy.tensor.degree.value_or(1) > 1) refuse("strategy.tensor.degree", "1");
    if (strategy.tensor.sequence_parallel) refuse("strategy.tensor.sequence_parallel", "false");
    if (strategy.pipeline.degree.value_or(1) > 1) refuse("strategy.pipeline.degree", "1");
    if (strategy.data.kind == DataKind::ddp && strategy.data.reduce == Reduce::micro_batch) refuse("strategy.data.reduce", "auto, step");
    if (strategy.data.compression.kind != Compression::Kind::none) {
      const Setting* setting = loaded_.setting("strategy.data.compression");
      const bool by_profile = setting != nullptr && setting->from == Setting::From::profile;
      refuse(by_profile ? "strategy.profile" : "strategy.data.compression", by_profile ? "none, high_bandwidth" : "none");
    }
  }

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
