// The stages of compile.h, in their order.
#include "engine/compile/compile.h"

#include "engine/compile/choose.h"
#include "engine/compile/fit.h"
#include "engine/compile/fixed.h"

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
  require_room_for_states(loaded, hardware);
  CompiledJob compiled =
      leaves_choices(loaded.job) ? choose(loaded, hardware) : compile_fixed(loaded, hardware, purpose);
  if (!compiled.fits && hardware.machine != nullptr) compiled.would_fit = what_would_fit(loaded, hardware);
  return compiled;
}

}  // namespace trainer
