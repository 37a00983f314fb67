// The training loop: ranks as threads or processes, each with an executor; steps, evaluation, checkpoints, signals.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/data/data.h"
#include "engine/monitor/monitor.h"
#include "engine/run/executor.h"
#include "engine/train/generator.h"

namespace trainer {

/// What a rank was promised, and took and sent.
struct RankReport {
  std::int64_t planned_bytes = 0;    ///< its role's allocation, by the plan
  std::int64_t allocated_bytes = 0;  ///< its one allocation
  std::int64_t counted_bytes =
      0;  ///< what a GPU itself says was taken since the plan was loaded, libraries with it; 0 on a CPU
  std::int64_t bytes_sent = 0;  ///< in the steps of this run, as its communicator counted
  std::int64_t planned_offload_bytes = 0, allocated_offload_bytes = 0;  ///< off the device
};

/// How a run ended, for `run --json` and the exit code. Whole on rank 0; of other processes only what all know.
struct RunReport {
  std::int64_t first_step = 0;                                ///< updates made before this run (0: fresh)
  std::int64_t steps = 0;                                     ///< updates made in all
  std::optional<double> loss;                                 ///< of the last step
  Figures figures{};                                          ///< likewise
  std::optional<double> val_loss, val_accuracy, exact_match;  ///< of the last evaluation
  Figures val_figures{};                                      ///< likewise
  double tokens_per_s = 0;                                    ///< over the steps of this run but the first
  double step_ms_median = 0, step_ms_p95 = 0;
  double startup_ms = 0;  ///< from `process_start` to the start of the first step
  std::int64_t planned_peak_bytes = 0, allocated_bytes = 0, counted_bytes = 0;  ///< of the fullest rank
  std::int64_t offloaded_bytes = 0;  ///< of the rank that has most off its device
  std::int64_t bytes_sent = 0;       ///< by rank 0 in the steps of this run
  std::vector<RankReport> ranks{};   ///< every rank's
  std::string checkpoint;            ///< path of the last one saved; empty: none
  std::string
      log_failure;  ///< why a monitor could not write its log, which ended the run after the step at hand; empty: none
  bool stopped_by_signal = false;
  bool finished_before = false;    ///< nothing was left to do: all the steps were made by an earlier run
  std::string run_id;              ///< the same for every start of a run
  std::int64_t skipped_steps = 0;  ///< of this run, that made no update
  std::int64_t rollbacks = 0;      ///< of this run and of those that it went on from
};

/// When each instruction of a rank's last step ran.
struct RankTrace {
  int rank = 0;
  std::int64_t start_ns = 0;  ///< when the step started, on a clock that all ranks share
  std::vector<Span> spans;    ///< of the step program's instructions, from there on
};

struct TrainOptions {
  std::chrono::steady_clock::time_point process_start = std::chrono::steady_clock::now();
  const std::atomic<bool>* stop = nullptr;  ///< true asks to finish the step, save and end; a signal handler may set it
  Communicator* process =
      nullptr;      ///< this process's rank, where each is a process; null: ranks are threads of this one
  int threads = 0;  ///< of a rank; 0: its share of this machine
  /// Of every batch of `of` times the job's, each data rank takes only this share of its part.
  struct Share {
    int index = 0, of = 1;
  };
  Share share{};
  double peak_flops = 0;  ///< a second, of all ranks, for the log's MFU; 0: unknown
  std::function<void(int rank, const Executor&)>
      at_end{};  ///< called by each rank of this process, on its own thread, when its last step is done
  std::function<void(const std::vector<RankTrace>&)>
      trace{};  ///< gets the last step's times, of every rank; recorded only if set
};

/// A loss, a gradient or a weight was not finite, and train.on_nan does not go on from there. Exit code 65; the text
/// has step, loss, the first tensor and the last good checkpoint. Nothing was saved. Under a dynamic loss scale a step
/// that overflows is skipped, its batch and its place in the learning rate's schedule used up, and only one at the
/// smallest scale counts as not finite.
struct NonFiniteError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Runs a compiled job (Purpose::train) to its end, resuming by checkpoint.resume. Monitors and trace are rank 0's:
/// only its process calls them; an IoError of theirs ends the run as a signal does, with its weights saved. Throws what
/// a rank threw, in every process something: AbortedError where another's rank failed.
RunReport train(const LoadedJob& loaded, const CompiledJob& compiled, const Monitors& monitors,
                const TrainOptions& options);

/// Where an evaluation runs: as in TrainOptions.
struct EvaluateOn {
  Communicator* process = nullptr;
  int threads = 0;
  std::function<void(const std::string&)> tell = [](const std::string&) {
  };  ///< rank 0's: hears of damaged checkpoints that were passed over
};

/// Loss (and accuracy) on the job's validation data of the weights in `checkpoint` (a step directory, a directory of
/// them, or a .safetensors file). `compiled` is of Purpose::evaluate. `batches`: 0 takes all of the data.
EvaluationRecord evaluate(const LoadedJob& loaded, const CompiledJob& compiled, const std::string& checkpoint,
                          std::int64_t batches, const EvaluateOn& on = {});

struct SampleOptions {
  std::string prompt;
  std::int64_t num_tokens = 200;
  bool special = false;  ///< the prompt gets the special tokens that its tokenizer adds to a text
  Drawing drawing{};
  std::vector<std::int32_t> stop{};  ///< generation ends before any of these ids, or at num_tokens
};

struct Sampled {
  std::vector<std::int32_t> ids;  ///< of the prompt and of what was generated
  bool text = true;               ///< false: the data is ids, so prompt and output are numbers
};

/// The lengths for which a text of up to `most` tokens needs plans of their own, ascending, `most` the last: what a
/// model computes may depend on the length of its sequence (scaled rotary positions). Where it is another at every
/// length, `most` alone.
std::vector<std::int64_t> lengths_for_sampling(const LoadedJob& loaded, std::int64_t most);

/// Generates tokens from the weights in `checkpoint`, with the tokenizer saved there (the job's own where there is
/// none; of `format: tokens` ids as numbers). `plans` are of Purpose::sample, of growing sequences: where a text does
/// not fit into one it goes on in the next (plans_for_sampling). `emit` gets text as it comes, the prompt first. Raises
/// DataError for a prompt that has no ids and for weights that do not fit, UsageError where a prompt is needed. `tell`:
/// as EvaluateOn::tell.
Sampled sample(
    const LoadedJob& loaded, std::span<const CompiledJob> plans, const std::string& checkpoint,
    const SampleOptions& options, const std::function<void(const std::string&)>& emit,
    const std::function<void(const std::string&)>& tell = [](const std::string&) {});

/// The learning rate of `optimizer`, one of the job, at step `step` (from 0). The schedule is that of train.optimizer;
/// rates of other optimizers keep their ratio to its.
double learning_rate(const TrainJob& job, const OptimizerJob& optimizer, std::int64_t step);

}  // namespace trainer
