// Steps: gives a rank's device one step of training after another. A device that may start ahead is given the next step
// before the host looks at the one that runs, so that it seldom waits for the host. If that one fails, the next makes
// no update (kernels/optimizer.h), and its batch is the first to be used afterwards.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/data/loader.h"
#include "engine/run/executor.h"
#include "engine/train/inputs.h"

namespace trainer {

class Steps {
  using Clock = std::chrono::steady_clock;

 public:
  /// Binds the fields that a step reads: the batch, learning rates, its number. All of it outlives this object. Checks
  /// the dataset as BatchBinder does.
  Steps(const Job& job, const CompiledJob& compiled, Executor& executor, Communicator& communicator,
        const data::Dataset& dataset);

  /// Whether the device can be given a step before the last is finished.
  bool can_go_ahead() const { return executor_.may_start_ahead(program_); }

  /// Runs step `step`, by the next batch of `loader`. Returns at its end, with the milliseconds that it took: from the
  /// end of the step before, if it was started by then. `goes_ahead`: the step after is started too; one whose batch
  /// cannot be read is not, since the loader says so again when it is due. `meanwhile` is called while the device
  /// works.
  double run(data::Loader& loader, std::int64_t step, bool goes_ahead, const std::function<void()>& meanwhile);

  /// Whether a step was started that run() has not returned from.
  bool is_ahead() const { return next_ && next_->runs; }

  /// Binds the fields of the step that run() returned from once more. What was started after it is finished, and will
  /// be started again. REQUIRES: the step failed, so that the one after it changed nothing.
  void bind_again();

  /// Of the plan's program of a step.
  std::int32_t program() const { return program_; }
  /// When it was started last.
  Clock::time_point program_start() const { return program_start_; }
  /// By all steps.
  std::int64_t bytes_sent() const { return bytes_sent_; }

 private:
  // A step and its batch.
  struct Drawn {
    data::Loader::Batch batch;
    std::int64_t step = 0;
    bool runs = false;            // it was started
    std::int64_t bytes_sent = 0;  // by the start
  };

  void start(Drawn& drawn);
  void bind(const Drawn& drawn);
  template <typename Work>
  std::int64_t sent_by(Work&& work) const;

  const Job& job_;
  const CompiledJob& compiled_;
  Executor& executor_;
  Communicator& communicator_;
  const std::int32_t program_, averaging_program_;  // -1: there is no such
  BatchBinder binder_;
  std::vector<float> rates_;  // of CompiledJob::optimizers
  std::int32_t number_ = 0;   // of the step
  Drawn now_;                 // the last that run() returned from
  std::optional<Drawn> next_;
  Clock::time_point end_{};  // of now_
  Clock::time_point program_start_{};
  std::int64_t bytes_sent_ = 0;
};

}  // namespace trainer
