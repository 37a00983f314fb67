// Each try is a whole choice, except where not even an equal share of what stays would fit.
#include "engine/compile/choose_offload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
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
  OffloadTo gradients, parameters;
  std::string_view what;
};

constexpr std::array<Moved, 3> kMoved{{
    {OffloadTo::none, OffloadTo::none, "the optimizer's states and master weights are"},
    {OffloadTo::host, OffloadTo::none, "the optimizer's states, master weights and gradients are"},
    {OffloadTo::host, OffloadTo::host, "the optimizer's states, gradients and all weights are"},
}};

LoadedJob offloaded(LoadedJob loaded, const Moved& one) {
  StrategyJob& strategy = loaded.job.strategy;
  strategy.offload.optimizer = OffloadTo::host;
  strategy.offload.gradients = one.gradients;
  strategy.offload.parameters = one.parameters;
  if (one.gradients == OffloadTo::none) return loaded;
  strategy.free = {};
  if (one.parameters == OffloadTo::none)
    strategy.free.data = true;
  else
    strategy.data.kind = DataKind::fsdp;
  return loaded;
}

double spread_of(const cost::Prediction& prediction) {
  return (prediction.high_us - prediction.low_us) / 2 / std::max(1e-9, prediction.step_us);
}

// Whether the host's processor goes over what an update reads and writes in less time than masters and states come to
// the GPU: else it cannot be faster, and need not be planned.
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
  if (!may_be_faster(loaded, compiled, hardware)) return compiled;
  LoadedJob fixed = loaded;
  fixed.job.strategy = compiled.strategy;
  fixed.job.strategy.offload.update = UpdateOn::host;
  fixed.job.train.batch.micro = compiled.batch.micro;
  fixed.job.activation_checkpointing = compiled.recompute;
  CompiledJob on_host = compile_fixed(fixed, hardware, Purpose::train);
  for (CompiledJob* one : {&compiled, &on_host})
    if (one->prediction == nullptr)
      one->prediction = std::make_shared<const cost::Prediction>(
          cost::predict(one->plan, cost::CostModel(cluster_of(*one, hardware))));
  const double there = on_host.prediction->step_us, here = compiled.prediction->step_us;
  if (!on_host.fits || there * (1 + cost::tie_of(spread_of(*on_host.prediction))) >= here) return compiled;
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

}  // namespace

std::optional<CompiledJob> choose_offload(const LoadedJob& loaded, const Hardware& hardware) {
  const bool cuda = hardware.machine != nullptr && hardware.machine->device.kind == cost::DeviceKind::cuda;
  if (!cuda || loaded.job.strategy.free != StrategyJob{}.free || loaded.job.strategy.offload.any()) return std::nullopt;
  const std::int64_t ranks_per_node = world_size_of(loaded.job) / loaded.job.cluster.nodes,
                     limit = memory_limit(loaded.job, hardware, ranks_per_node), all = least_states_bytes(loaded);
  for (const Moved& one : kMoved) {
    const LoadedJob moved = offloaded(loaded, one);
    const std::int64_t stays = least_states_bytes(moved);
    if (stays > limit || (all - stays) * ranks_per_node > hardware.machine->host_memory_bytes) continue;
    try {
      CompiledJob compiled =
          leaves_choices(moved.job) ? choose(moved, hardware) : compile_fixed(moved, hardware, Purpose::train);
      if (!compiled.fits) continue;
      compiled = with_faster_update(moved, std::move(compiled), hardware);
      compiled.strategy_why = "Nothing fits with everything on the device, so " + std::string(one.what) +
                              " in the host's memory. " + compiled.strategy_why;
      return compiled;
    } catch (const JobError&) {  // gradients leave the device only where a step has one micro-batch
    }
  }
  return std::nullopt;
}

}  // namespace trainer
