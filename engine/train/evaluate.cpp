// Weights from a checkpoint, loss on held-out data.
#include <cmath>

#include "engine/core/error.h"
#include "engine/train/answers.h"
#include "engine/train/base.h"
#include "engine/train/evaluation.h"
#include "engine/train/ranks.h"
#include "engine/train/saved_facts.h"
#include "engine/train/train.h"

namespace trainer {
namespace {

// Ids of another tokenizer are other texts: the loss would be a number without a meaning.
void require_same_tokenizer(const data::Data& data, const checkpoint::Manifest& manifest,
                            const std::string& checkpoint) {
  const std::string saved = facts_of(manifest, checkpoint).tokenizer;
  if (saved.empty() || !data.tokenizer || saved == canonical_json(data.tokenizer->json())) return;
  throw DataError(
      checkpoint +
      ": was trained with another tokenizer than data.train gives: another alphabet, or another data.tokenizer. Name "
      "the text that it was trained on as data.train, and the text to evaluate as data.val");
}

}  // namespace

EvaluationRecord evaluate(const LoadedJob& loaded, const CompiledJob& compiled, const std::string& checkpoint,
                          std::int64_t batches, const EvaluateOn& on) {
  const data::Data data = open_inputs(loaded, compiled);
  if (!data.val) throw DataError("the job has no validation data (data.val)");
  if (data.has_rows()) on.tell(data::summary_of_rows(data, loaded.job.data.seq_len, /*val=*/true));
  const std::shared_ptr<const data::Questions> questions = open_questions(loaded, compiled);
  const int threads = on.threads > 0 ? on.threads : threads_per_rank(ranks_per_node(loaded.job));
  EvaluationRecord record;
  require_threads_of(loaded.job, on.process, threads);
  run_ranks(on.process, compiled.plan.mesh.world_size(), [&](Communicator& communicator) {
    const std::unique_ptr<DeviceBackend> device = device_for(loaded.job, communicator, threads);
    const std::unique_ptr<Executor> executor = device->load(compiled.plan, communicator.rank(), communicator);
    ControlChannel& channel = communicator.control();
    const std::optional<checkpoint::Manifest> manifest = load_for_use(
        loaded, compiled, {*executor, compiled.plan, communicator.rank()}, checkpoint, communicator, channel, on.tell);
    if (manifest) require_same_tokenizer(data, *manifest, checkpoint);
    executor->run(executor->role().program_index(ProgramKind::refresh));
    Evaluation evaluation(*executor, compiled, data.val, communicator.rank(), batches);
    EvaluationRecord mine = evaluation.run(manifest ? manifest->step : 0);
    if (questions) mine.exact_match = Answers(*executor, compiled, questions, communicator.rank()).exact_match(channel);
    if (communicator.rank() == 0 || on.process != nullptr) record = mine;
  });
  if (!std::isfinite(record.val_loss))
    throw DataError(checkpoint + ": the validation loss is " + std::to_string(record.val_loss) +
                    ", although the weights are finite: the model overflows on this data");
  return record;
}

}  // namespace trainer
