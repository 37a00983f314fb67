// Each try is a whole choice, except where not even an equal share of what stays would fit.
#include "engine/compile/choose_offload.h"

#include <array>
#include <string>
#include <string_view>

#include "engine/compile/choose.h"
#include "engine/compile/fit.h"
#include "engine/compile/fixed.h"
#include "engine/compile/hardware.h"
#include "engine/core/error.h"
#include "engine/cost/machine_model.h"

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
      compiled.strategy_why = "Nothing fits with everything on the device, so " + std::string(one.what) +
                              " in the host's memory. " + compiled.strategy_why;
      return compiled;
    } catch (const JobError&) {  // gradients leave the device only where a step has one micro-batch
    }
  }
  return std::nullopt;
}

}  // namespace trainer
