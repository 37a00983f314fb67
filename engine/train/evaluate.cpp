// Weights from a checkpoint, loss on held-out data.
#include "engine/core/error.h"
#include "engine/train/device.h"
#include "engine/train/evaluation.h"
#include "engine/train/ranks.h"
#include "engine/train/train.h"
#include "engine/train/weights.h"

namespace trainer {

EvaluationRecord evaluate(const LoadedJob& loaded, const CompiledJob& compiled, const std::string& checkpoint, std::int64_t batches, const EvaluateOn& on) {
  const data::Data data = open_inputs(loaded, compiled);
  if (!data.val) throw DataError("the job has no validation data (data.val)");
  const int threads = on.threads > 0 ? on.threads : threads_per_rank(ranks_per_node(loaded.job));
  EvaluationRecord record;
  require_threads_of(loaded.job, on.process, threads);
  run_ranks(on.process, compiled.plan.mesh.world_size(), [&](Communicator& communicator) {
    const std::unique_ptr<DeviceBackend> device = device_for(loaded.job, communicator, threads);
    const std::unique_ptr<Executor> executor = device->load(compiled.plan, communicator.rank(), communicator);
    Talk talk(communicator);
    const std::optional<checkpoint::Manifest> manifest = load_weights_from({*executor, compiled.plan, communicator.rank()}, checkpoint, talk, on.tell);
    executor->run(executor->role().program_index("refresh"));
    Evaluation evaluation(*executor, compiled, data.val, compiled.plan.mesh.data_rank(communicator.rank()), batches);
    const EvaluationRecord mine = evaluation.run(manifest ? manifest->step : 0);
    if (communicator.rank() == 0 || on.process != nullptr) record = mine;
  });
  return record;
}

}  // namespace trainer
