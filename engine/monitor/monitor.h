// Monitor: who is told what happens in a run. One record of a step serves every listener: the terminal, a pipe,
// log.jsonl, TensorBoard. Listeners are called on rank 0's thread between steps and keep quick.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

/// Numbers by their names in logs: what an objective tells beside the loss.
using Figures = std::vector<std::pair<std::string, double>>;

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
  std::int64_t samples = 0;               ///< that the run has seen, those of this step included
  double epoch = 0;                       ///< the same in passes over the training data
  double time = 0;                        ///< seconds since 1970
  std::int64_t memory_bytes = 0;          ///< of this rank: its allocation, or what a GPU says was taken
  std::optional<double> mfu{};            ///< model FLOPs of a second over the machine's peak; nothing: unknown
  std::optional<double> loss_scale{};     ///< that the step was made with; nothing: the job has none
  std::optional<double> aux_loss{};       ///< the losses of routers, a mean over samples; nothing: none has any
  std::optional<std::int64_t> dropped{};  ///< choices of experts that were left out; nothing: all experts take all
  bool skipped = false;  ///< it made no update: it overflowed at that scale, or was not finite (train.on_nan: skip)
  bool lowers_scale = false;  ///< it overflowed at that scale, which the next step lowers
  Figures figures{};          ///< means over the global batch before the update
};

struct EvaluationRecord {
  std::int64_t step = 0;  ///< updates made so far
  double val_loss = 0;
  std::optional<double> val_accuracy;  ///< right answers over counted targets, where the loss is a cross-entropy
  std::optional<double> exact_match;   ///< right answers over the questions of eval.generate
  Figures figures{};                   ///< their names begin with "val_"
};

/// Training begins: the first thing that a monitor hears, messages aside.
struct StartRecord {
  std::string run_id;      ///< the same for every start of a run
  std::int64_t step = 0;   ///< updates made so far
  std::string checkpoint;  ///< that the run goes on from; empty: it is fresh
  std::string plan_hash;
  std::vector<std::string> changes{};  ///< since the checkpoint: "train.optimizer.lr 0.002 → 0.001"
};

/// Training goes back (train.on_nan: rollback): the next step is `step`, and what was told of that step and later ones
/// no longer holds.
struct RollbackRecord {
  std::int64_t step = 0;
  std::string checkpoint, reason;
};

class Monitor {
 public:
  virtual ~Monitor() = default;
  /// Throws where the monitor's output cannot be written: no step has been made yet.
  virtual void start(const StartRecord&) {}
  virtual void rollback(const RollbackRecord&) {}
  virtual void step(const StepRecord&) {}
  virtual void evaluation(const EvaluationRecord&) {}
  virtual void checkpoint(std::int64_t /*step*/, const std::string& /*path*/) {}
  /// A sentence for people: where a run resumed, which checkpoint was passed over and why.
  virtual void message(const std::string&) {}
};

using Monitors = std::vector<std::unique_ptr<Monitor>>;

}  // namespace trainer
