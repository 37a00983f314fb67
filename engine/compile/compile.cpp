// The stages of compile.h, in their order.
#include "engine/compile/compile.h"

#include <optional>
#include <utility>

#include "engine/compile/choose.h"
#include "engine/compile/choose_offload.h"
#include "engine/compile/fit.h"
#include "engine/compile/fixed.h"
#include "engine/core/error.h"

namespace trainer {

CompiledJob compile(const LoadedJob& loaded, const Hardware& hardware, Purpose purpose) {
  if (purpose == Purpose::score && leaves_choices(loaded.job)) {
    LoadedJob alone = loaded;
    alone.job.strategy = {};
    alone.job.activation_checkpointing = {};
    alone.job.cluster.nodes = 1;
    alone.job.cluster.devices_per_node = 1;
    return compile_fixed(alone, hardware, purpose);
  }
  if (purpose != Purpose::train) return compile_fixed(loaded, hardware, purpose);
  std::optional<CompiledJob> compiled;
  if (has_room_for_states(loaded, hardware))
    compiled = leaves_choices(loaded.job) ? choose(loaded, hardware) : compile_fixed(loaded, hardware, purpose);
  if (compiled && compiled->fits) return std::move(*compiled);
  if (std::optional<CompiledJob> offloaded = choose_offload(loaded, hardware)) return std::move(*offloaded);
  if (!compiled) throw JobError({no_room_for_states(loaded, hardware)});
  if (hardware.machine != nullptr) compiled->would_fit = what_would_fit(loaded, hardware);
  return std::move(*compiled);
}

}  // namespace trainer
