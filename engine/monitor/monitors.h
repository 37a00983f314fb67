// The monitors there are. Each opens its output when training begins (Monitor::start, or its first record), so that one
// that cannot be written ends a run before its first step, and a run that does not begin touches nothing; folders of
// outputs are made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/monitor/monitor.h"

namespace trainer {

struct ProgressOptions {
  std::int64_t every = 10;          ///< steps between lines where the output is no terminal
  int descriptor = 2;               ///< where the text goes
  bool terminal = false;            ///< one line rewritten in place, in place of lines
  bool unicode = false;             ///< the terminal shows block characters: adds a curve of the loss
  int width = 100;                  ///< columns of the terminal
  std::string unit = "tokens";      ///< what StepRecord::tokens counts
  std::function<double()> seconds;  ///< a steady clock; empty: the machine's
};

/// `descriptor`, looked at: whether it is a terminal, how wide, and whether it shows UTF-8.
ProgressOptions progress_options(int descriptor, std::int64_t every);

/// For people: updates made, loss, rate and time left. On a terminal a line that is redrawn at most ten times a second;
/// elsewhere a line for the first step, every `every` steps and for the last. The loss is the mean since it was last
/// shown. Evaluations, checkpoints and messages are lines of their own in both.
std::unique_ptr<Monitor> progress_monitor(const ProgressOptions& options);

/// log.jsonl: {"step", "loss", "lr", "grad_norm", "tokens", "step_ms", "tokens_per_s", "time", "samples", "epoch",
/// "memory_bytes"[, "mfu"][, "loss_scale"][, "skipped"]} a step, {"step", "val_loss"[, "val_accuracy"][,
/// "exact_match"]} an evaluation, each with the figures of its record, and {"step", "event": "start" or "rollback", …}
/// where training begins or goes back, each written at once. Numbers that are not finite are null.
///
/// The file always tells one history. Its lines ascend: the evaluation after n updates stands before a start at n, and
/// that before step n. What the file holds after the place of a record is cut off; so a resumed run repeats nothing,
/// and a fresh one starts an empty file. A half-written last line, which a killed run leaves, is cut off too. The file
/// is locked: a second run that names it gets an IoError. Throws DataError if `path` holds anything but such lines,
/// IoError if it cannot be written.
std::unique_ptr<Monitor> jsonl_monitor(const std::string& path);

/// An event file for TensorBoard in `folder`: scalars loss, lr, grad_norm, tokens_per_s, loss_scale, val_loss,
/// val_accuracy, exact_match and figures. A resumed run starts a file of its own, whose first record tells TensorBoard
/// to drop what earlier files have from there on. At most a second's records are lost by a kill. Throws IoError.
std::unique_ptr<Monitor> tensorboard_monitor(const std::string& folder);

}  // namespace trainer
