// The values this build cannot carry out. A line goes when the work behind it is done.
#include "engine/job/supported.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/job/names.h"

namespace trainer {
namespace {

// What is missing, a line each.
constexpr DataKind kMissingKinds[] = {
    DataKind::local_sgd,
};
constexpr std::string_view kMissingKeys[] = {
    "strategy.data.compression",
    "strategy.wrap.excluded",
};

bool lacks(DataKind kind) { return std::ranges::find(kMissingKinds, kind) != std::end(kMissingKinds); }
bool lacks_key(std::string_view key) { return std::ranges::find(kMissingKeys, key) != std::end(kMissingKeys); }

/// The kinds of data strategy that are there; with `bare` every name that may stand for a strategy.
std::string strategies(bool bare) {
  std::vector<std::string_view> out;
  if (bare) out.push_back("auto");
  for (const auto& [kind, name] : names<DataKind>())
    if (!lacks(kind)) out.push_back(name);
  for (const std::string_view axis : {"tensor", "pipeline"})
    if (bare) out.push_back(axis);
  return fmt::format("{}", fmt::join(out, ", "));
}

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
    const DataStrategyJob& data = strategy.data;
    const bool bare = loaded_.setting("strategy") != nullptr;
    if (lacks(data.kind)) refuse(bare ? "strategy" : "strategy.data.kind", strategies(bare));
    if (data.kind == DataKind::ddp && data.reduce == Reduce::micro_batch) refuse("strategy.data.reduce", "auto, step");
    if (data.compression.kind != Compression::Kind::none && lacks_key("strategy.data.compression")) {
      const Setting* setting = loaded_.setting("strategy.data.compression");
      const bool by_profile = setting != nullptr && setting->from == Setting::From::profile;
      refuse(by_profile ? "strategy.profile" : "strategy.data.compression", by_profile ? "none, high_bandwidth" : "none");
    }
    if (!strategy.wrap.excluded.empty() && lacks_key("strategy.wrap.excluded")) refuse("strategy.wrap.excluded", "[]");
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
