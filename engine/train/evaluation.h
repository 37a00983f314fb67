// Evaluation: the loss over held-out samples, on all ranks at once.
#pragma once

#include <memory>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/train/inputs.h"
#include "engine/train/train.h"

namespace trainer {

/// Sums as Loss::figures has them to means; `prefix` begins their names.
Figures figures_of(const std::vector<std::string>& names, const std::vector<double>& sums,
                   const std::string& prefix = "");

/// Whether the plan has a program that evaluates.
bool evaluates(const CompiledJob& compiled);
/// How many batches `samples` samples are: the last one may be short, if the loss can leave targets out.
std::int64_t num_evaluation_batches(const CompiledJob& compiled, std::int64_t samples);

/// One rank's part. Every rank evaluates the same batches at the same time.
class Evaluation {
 public:
  /// `batches`: global batches at most; 0: all of the data. Samples come in order, each at most once: where the last
  /// batch is not full, the places beyond the data are ignored targets (or, where targets cannot be ignored, that batch
  /// is left out).
  Evaluation(Executor& executor, const CompiledJob& compiled, std::shared_ptr<const data::Dataset> dataset, int rank,
             std::int64_t batches);
  EvaluationRecord run(std::int64_t step);

 private:
  void mask_beyond_end(std::int64_t index, const data::Loader::Batch& batch);

  Executor& executor_;
  std::shared_ptr<const data::Dataset> dataset_;
  BatchShape batch_;
  data::Share share_;
  std::int32_t program_;
  BatchBinder binder_;
  std::int64_t num_batches_;
  std::int64_t ignore_index_ = 0;
  std::int32_t targets_field_ = -1;  // of this rank's role; -1: it reads no targets, or they cannot be ignored
  std::size_t targets_index_ = 0;    // of the dataset
  bool accuracy_ = false;
  std::vector<std::int32_t> masked_;
  double results_[3] = {0, 0, 0};  // loss sum, count, right answers
  std::vector<std::string> figure_names_;
  std::vector<double> figures_;  // of a batch, as Loss::figures
};

}  // namespace trainer
