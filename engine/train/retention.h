// Retention: which checkpoints of a run's folder stay, and which of them are good.
//
// A checkpoint is good once a step that began from its weights was finite: a bad update leaves weights that are finite,
// and only the next step shows it. Invariant: the newest good checkpoint is never removed, whatever `keep` is, so one
// that a bad update ruined cannot take its place. What is good is not written down: after a kill it follows from the
// checkpoints that are there, since a later one exists only where a step in between was finite (or says that it was
// `after_skipped`).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/job/job.h"
#include "engine/train/saved_facts.h"

namespace trainer {

class Retention {
 public:
  Retention(checkpoint::Store& store, const CheckpointJob& job) : store_(store), job_(job) {}

  /// Takes over what an earlier process of the run left in the folder, up to the checkpoint of `step`, from which it
  /// goes on.
  void take_over(std::int64_t step);
  /// A checkpoint was committed.
  void saved(std::int64_t step, const SavedFacts& facts);
  /// A step from the newest weights was finite.
  void finite();
  /// The lowest validation loss of a checkpoint there is (keep_best).
  std::optional<double> best_loss() const { return best_ ? std::optional(best_->loss) : std::nullopt; }
  /// Nothing will follow: removes what `keep` does not want.
  void finish(std::int64_t step) { prune(step); }

  /// Steps of checkpoints that were set aside, and the checkpoint to go back to.
  struct Fallback {
    std::string good;                      ///< path; empty: there is none
    std::int64_t step = 0;                 ///< of `good`
    std::vector<std::string> set_aside{};  ///< new paths
  };
  /// The step after the newest weights was not finite: checkpoints that are not known to be good are set aside, if a
  /// good one remains.
  Fallback fall_back();

 private:
  struct Best {
    std::int64_t step = 0;
    double loss = 0;
  };

  void note_loss(std::int64_t step, const SavedFacts& facts);
  void prune(std::int64_t step);

  checkpoint::Store& store_;
  const CheckpointJob& job_;
  std::optional<std::int64_t> good_;    // the newest
  std::vector<std::int64_t> unproven_;  // later ones, ascending
  std::optional<Best> best_;            // of keep_best: the lowest validation loss
};

/// What a user does after a stop by a value that is not finite. `spent`: the run has gone back as often as it may.
std::string advice(const Retention::Fallback& fallback, OnNan on_nan, bool spent);

}  // namespace trainer
