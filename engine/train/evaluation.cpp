// Sums over batches on the host; each batch's sums over ranks are the plan's.
#include "engine/train/evaluation.h"

#include <algorithm>

#include "engine/core/check.h"

namespace trainer {
namespace {

// A rank evaluates one micro-batch at a time: that is what the program takes.
std::int64_t global_batch(const BatchShape& batch) { return batch.micro * batch.data_ranks; }

}  // namespace

Figures figures_of(const std::vector<std::string>& names, const std::vector<double>& sums, const std::string& prefix) {
  Figures figures;
  for (std::size_t i = 0; i < names.size(); ++i)
    figures.emplace_back(prefix + names[i], sums[i] / std::max(sums[names.size()], 1.0));
  return figures;
}

bool evaluates(const CompiledJob& compiled) {
  return compiled.plan.roles.front().program(ProgramKind::evaluate) != nullptr;
}

std::int64_t num_evaluation_batches(const CompiledJob& compiled, std::int64_t samples) {
  const std::int64_t size = global_batch(compiled.batch);
  return compiled.ignore_index ? (samples + size - 1) / size : samples / size;
}

Evaluation::Evaluation(Executor& executor, const CompiledJob& compiled, std::shared_ptr<const data::Dataset> dataset,
                       int rank, std::int64_t batches)
    : executor_(executor),
      dataset_(std::move(dataset)),
      batch_(compiled.batch),
      share_(data::share_of(compiled.plan.mesh.index(rank, kBatchAxes), batch_.data_ranks, global_batch(batch_))),
      program_(executor.role().program_index(ProgramKind::evaluate)),
      binder_(executor, {compiled.plan.mesh, compiled.plan.mesh.coordinates(rank)}, *dataset_, program_, batch_.micro) {
  if (compiled.ignore_index) {
    ignore_index_ = *compiled.ignore_index;
    const auto& fields = dataset_->fields();
    const auto targets = std::find_if(fields.begin(), fields.end(),
                                      [](const data::SampleField& field) { return field.name == "targets"; });
    CHECK(targets != fields.end(), "a cross-entropy has targets");
    targets_index_ = static_cast<std::size_t>(targets - fields.begin());
    targets_field_ = executor_.role().field_index("targets");
  }
  accuracy_ = compiled.counts_correct;
  figure_names_ = compiled.figures;
  if (!figure_names_.empty()) figures_.resize(figure_names_.size() + 1);
  num_batches_ = num_evaluation_batches(compiled, dataset_->num_samples());
  CHECK(num_batches_ > 0, "open_inputs sees to enough samples");
  // The job counts batches of the global size of a step.
  if (batches > 0)
    num_batches_ = std::min(num_batches_, std::max<std::int64_t>(1, batches * batch_.global / global_batch(batch_)));
}

EvaluationRecord Evaluation::run(std::int64_t step) {
  data::Loader loader(dataset_, data::SampleOrder(dataset_->num_samples(), global_batch(batch_), false, 0), share_);
  executor_.bind(executor_.role().field_index("evaluation"), results_);
  const std::int32_t field = executor_.role().field_index("figures");
  if (field >= 0) executor_.bind(field, figures_.data());
  double loss = 0, count = 0, correct = 0;
  std::vector<double> figures(figures_.size(), 0.0);
  for (std::int64_t index = 0; index < num_batches_; ++index) {
    const data::Loader::Batch batch = loader.next();
    binder_.bind(batch);
    mask_beyond_end(index, batch);
    executor_.run(program_);
    loss += results_[0];
    count += results_[1];
    correct += results_[2];
    for (std::size_t i = 0; i < figures.size(); ++i) figures[i] += figures_[i];
  }
  EvaluationRecord record;
  record.step = step;
  record.val_loss = loss / std::max(count, 1.0);
  if (accuracy_) record.val_accuracy = correct / std::max(count, 1.0);
  record.figures = figures_of(figure_names_, figures, "val_");
  return record;
}

// The order goes round: places beyond the last sample hold samples that were counted before.
void Evaluation::mask_beyond_end(std::int64_t index, const data::Loader::Batch& batch) {
  const std::int64_t first = index * global_batch(batch_) + share_.first, end = dataset_->num_samples();
  if (first + share_.count <= end || targets_field_ < 0) return;
  const std::int64_t per_sample = dataset_->fields()[targets_index_].shape.elements();
  const auto* targets = reinterpret_cast<const std::int32_t*>(batch.fields[targets_index_]);
  masked_.assign(targets, targets + share_.count * per_sample);
  const std::int64_t kept = std::clamp<std::int64_t>(end - first, 0, share_.count);
  std::fill(masked_.begin() + kept * per_sample, masked_.end(), static_cast<std::int32_t>(ignore_index_));
  binder_.bind(targets_index_, reinterpret_cast<const std::byte*>(masked_.data()));
}

}  // namespace trainer
