// Monitor: who is told what happens in a run. One record of a step serves every listener: the terminal, a pipe, log.jsonl,
// TensorBoard. Listeners are called on rank 0's thread between steps and keep quick.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trainer {

/// A finished step. The loss is the mean over the global batch before the update.
struct StepRecord {
  std::int64_t step = 0;  ///< from 0
  std::int64_t num_steps = 0;
  double loss = 0;
  double lr = 0;
  double grad_norm = 0;     ///< before clipping
  std::int64_t tokens = 0;  ///< of the global batch: tokens, or samples where the data has none
  double step_ms = 0;
  double tokens_per_s = 0;
  std::optional<double> loss_scale{};  ///< that the step was made with; nothing: the job has none
  bool skipped = false;                ///< it overflowed at that scale, and made no update
};

struct EvaluationRecord {
  std::int64_t step = 0;  ///< updates made so far
  double val_loss = 0;
  std::optional<double> val_accuracy;  ///< right answers over counted targets, where the loss is a cross-entropy
};

class Monitor {
 public:
  virtual ~Monitor() = default;
  virtual void step(const StepRecord&) {}
  virtual void evaluation(const EvaluationRecord&) {}
  virtual void checkpoint(std::int64_t /*step*/, const std::string& /*path*/) {}
  /// A sentence for people: where a run resumed, which checkpoint was passed over and why.
  virtual void message(const std::string&) {}
};

using Monitors = std::vector<std::unique_ptr<Monitor>>;

}  // namespace trainer
