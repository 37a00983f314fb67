// A rank's part in saving checkpoints, from the step whose weights they are to the commit.
//
// Where files are written behind the step (engine/train/checkpoint_plan.h), a save copies what the rank writes and the
// run goes on. At the end of the first step at which the files of all ranks are on the disk, rank 0 commits. Invariant:
// one checkpoint is under way at a time, and until it is committed nothing but its hidden directory shows it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "engine/checkpoint/checkpoint.h"
#include "engine/compile/compile.h"
#include "engine/train/retention.h"
#include "engine/train/saved_facts.h"
#include "engine/train/saved_files.h"
#include "engine/train/weights.h"

namespace trainer {

class Saver {
 public:
  /// Rank 0's; of the other ranks all are null.
  struct First {
    checkpoint::Store* store = nullptr;
    Retention* retention = nullptr;
    std::function<void(std::int64_t step, const std::string& path)> committed;
  };

  /// REQUIRES: checkpoint.dir. What it is given outlives it.
  Saver(const Job& job, const CompiledJob& compiled, LoadedRank loaded, ControlChannel& channel, First first);

  // Called by all ranks alike.

  /// Saves the weights as they are, after `step` steps. Waits for a checkpoint that is still under way.
  void save(std::int64_t step, const SavedFacts& facts);
  /// Commits the checkpoint under way if the files of all ranks are written; does not wait for them. Throws what
  /// writing them threw.
  void commit_if_written();
  /// Waits until no checkpoint is under way. Throws as commit_if_written().
  void finish();

  /// Whether a checkpoint is not committed yet. The same on all ranks.
  bool under_way() const { return under_way_.has_value(); }

  // By each rank for itself.

  /// A step from the newest weights was finite.
  void finite();
  /// The run ends by an error: waits for this rank's files, and rank 0 commits if those of all ranks are there. What
  /// fails here is not told; the checkpoints before are whole.
  void finish_after_error() noexcept;

 private:
  struct UnderWay {
    std::int64_t step = 0;
    SavedFacts facts;
    bool proven = false;  // a step from its weights was finite
  };

  void save_to(SavedFiles& files);
  void wait_for_records() const;
  void commit();

  const Job& job_;
  const CompiledJob& compiled_;
  const LoadedRank loaded_;
  ControlChannel& channel_;
  const First first_;
  std::optional<FilesBehind> behind_;
  std::optional<UnderWay> under_way_;
};

}  // namespace trainer
