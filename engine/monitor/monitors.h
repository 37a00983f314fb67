// The monitors there are. Each is made before the first step, so that an output that cannot be written ends a run early;
// folders of outputs are made.
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

/// For people: step, loss, rate and time left. On a terminal a line that is redrawn at most ten times a second; elsewhere a
/// line every `every` steps and for the last. Evaluations, checkpoints and messages are lines of their own in both.
std::unique_ptr<Monitor> progress_monitor(const ProgressOptions& options);

/// log.jsonl: {"step", "loss", "lr", "grad_norm", "tokens", "step_ms", "tokens_per_s"} a step and {"step", "val_loss"[,
/// "val_accuracy"]} an evaluation, each written at once. Numbers that are not finite are null.
///
/// The file always tells one history. Its lines ascend: the evaluation after n updates stands before step n. On the
/// first record, whatever the file holds at or after that place is cut off; so a resumed run repeats nothing, and a fresh one
/// starts an empty file. A half-written last line, which a killed run leaves, is cut off too. Throws DataError if
/// `path` holds anything but such lines, IoError if it cannot be written.
std::unique_ptr<Monitor> jsonl_monitor(const std::string& path);

/// An event file for TensorBoard in `folder`: scalars loss, lr, grad_norm, tokens_per_s, loss_scale, val_loss and val_accuracy. A resumed
/// run starts a file of its own, whose first record tells TensorBoard to drop what earlier files have from there on.
/// At most a second's records are lost by a kill. Throws IoError.
std::unique_ptr<Monitor> tensorboard_monitor(const std::string& folder);

}  // namespace trainer
