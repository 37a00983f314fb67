// Each try is a whole choice, except where not even an equal share of what stays would fit.
#include "engine/compile/choose_offload.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "engine/compile/choose.h"
#include "engine/compile/fit.h"
#include "engine/compile/fixed.h"
#include "engine/compile/hardware.h"
#include "engine/compile/optimizers.h"
#include "engine/core/error.h"
#include "engine/cost/machine_model.h"
#include "engine/cost/predict.h"
#include "engine/cost/ranking.h"

namespace trainer {
namespace {

struct Moved {
  bool optimizer, gradients, parameters, activations;
  std::string_view what;

  int parts() const { return optimizer + gradients + parameters + activations; }
};

// Of as many parts those that move states before those that move activations.
constexpr std::array<Moved, 6> kMoved{{
    {true, false, false, false, "the optimizer's states and master weights are"},
    {false, false, false, true, "what backward passes need is"},
    {true, true, false, false, "the optimizer's states, master weights and gradients are"},
    {true, false, false, true, "the optimizer's states, master weights and what backward passes need are"},
    {true, true, true, false, "the optimizer's states, gradients and all weights are"},
    {true, true, true, true, "the optimizer's states, gradients, all weights and what backward passes need are"},
}};

LoadedJob offloaded(LoadedJob loaded, const Moved& one) {
  StrategyJob& strategy = loaded.job.strategy;
  const auto place = [](bool moves) { return moves ? OffloadTo::host : OffloadTo::none; };
  strategy.offload.optimizer = place(one.optimizer);
  strategy.offload.gradients = place(one.gradients);
  strategy.offload.parameters = place(one.parameters);
  strategy.offload.activations = place(one.activations);
  if (one.activations) strategy.free.pipeline = strategy.free.schedule = strategy.free.virtual_stages = false;
  if (!one.gradients) return loaded;
  strategy.free = {};
  if (!one.parameters)
    strategy.free.data = true;
  else
    strategy.data.kind = DataKind::fsdp;
  return loaded;
}

// An update on the host takes at least the time in which its processor reads and writes all operands. Unless that is
// less than the time in which masters and states move to the GPU, it cannot be faster and is not planned.
bool may_be_faster(const LoadedJob& loaded, const CompiledJob& compiled, const Hardware& hardware) {
  const cost::CostModel model(cluster_of(compiled, hardware));
  const PrecisionJob& precision = loaded.job.precision;
  constexpr double kElements = 1e9;
  const auto bytes = [](double each) { return static_cast<std::int64_t>(kElements * each); };
  const double states = 4 + state_bytes(loaded);
  const auto others = static_cast<double>(size_of(precision.compute) + size_of(precision.reduce));
  return model.on_host(bytes(2 * states + others)).us < model.move(Space::host, true, bytes(states)).us;
}

// The same plan with its update on the host's processor, if that is faster by more than a tie.
CompiledJob with_faster_update(const LoadedJob& loaded, CompiledJob compiled, const Hardware& hardware) {
  if (loaded.job.strategy.offload.optimizer == OffloadTo::none || !may_be_faster(loaded, compiled, hardware))
    return compiled;
  LoadedJob fixed = as_compiled(loaded, compiled);
  fixed.job.strategy.offload.update = UpdateOn::host;
  CompiledJob on_host = compile_fixed(fixed, hardware, Purpose::train);
  const double there = predict_step(on_host, hardware).step_us, here = predict_step(compiled, hardware).step_us;
  if (!on_host.fits || there * (1 + cost::tie_of(on_host.prediction->spread())) >= here) return compiled;
  on_host.alternatives = std::move(compiled.alternatives);
  if (!on_host.alternatives.empty()) {
    Alternative& taken = on_host.alternatives.front();
    taken.strategy = on_host.strategy;
    taken.predicted_us = there;
    taken.peak_bytes = on_host.peak_bytes();
  }
  on_host.strategy_why = fmt::format(
      "The host's processor updates the weights: a step takes {:.3g} s, and {:.3g} s where the GPU updates them. {}",
      there / 1e6, here / 1e6, compiled.strategy_why);
  return on_host;
}

class Offloading {
 public:
  Offloading(const LoadedJob& loaded, const Hardware& hardware)
      : loaded_(loaded),
        hardware_(hardware),
        ranks_per_node_(world_size_of(loaded.job) / loaded.job.cluster.nodes),
        limit_(memory_limit(loaded.job, hardware, ranks_per_node_)),
        all_(least_states_bytes(loaded)) {}

  // Nothing, if that does not fit.
  std::optional<CompiledJob> with(const Moved& one) const {
    const LoadedJob moved = offloaded(loaded_, one);
    const std::int64_t stays = least_states_bytes(moved);
    if (stays > limit_ || (all_ - stays) * ranks_per_node_ > hardware_.machine->host_memory_bytes) return std::nullopt;
    try {
      CompiledJob compiled =
          leaves_choices(moved.job) ? choose(moved, hardware_) : compile_fixed(moved, hardware_, Purpose::train);
      if (!compiled.fits) return std::nullopt;
      compiled = with_faster_update(moved, std::move(compiled), hardware_);
      compiled.strategy_why = fmt::format("Nothing fits with everything on the device, so {} in the host's memory. {}",
                                          one.what, compiled.strategy_why);
      return compiled;
    } catch (const JobError&) {  // gradients leave the device only where a step has one micro-batch
      return std::nullopt;
    }
  }

 private:
  const LoadedJob& loaded_;
  const Hardware& hardware_;
  const std::int64_t ranks_per_node_, limit_, all_;
};

}  // namespace

std::optional<CompiledJob> choose_offload(const LoadedJob& loaded, const Hardware& hardware) {
  const bool cuda = hardware.machine != nullptr && hardware.machine->device.kind == cost::DeviceKind::cuda;
  if (!cuda || loaded.job.strategy.free != StrategyJob{}.free || loaded.job.strategy.offload.any()) return std::nullopt;
  const Offloading offloading(loaded, hardware);
  std::optional<CompiledJob> best;
  for (std::size_t i = 0; i < kMoved.size() && !(best && kMoved[i].parts() > kMoved[i - 1].parts()); ++i) {
    std::optional<CompiledJob> one = offloading.with(kMoved[i]);
    if (one && (!best || predict_step(*one, hardware).step_us < predict_step(*best, hardware).step_us))
      best = std::move(one);
  }
  return best;
}

}  // namespace trainer
