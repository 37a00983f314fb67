// Where a run begins: rank 0 takes the folder of checkpoints, chooses the one to go on from and holds its job against
// this one's; all ranks open the same. Nothing but the folder has been touched when that is done.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/job/job.h"
#include "engine/train/ranks.h"
#include "engine/train/saved_facts.h"

namespace trainer {

struct Start {
  std::unique_ptr<checkpoint::Store> store;          ///< rank 0's; null: nothing is saved
  std::optional<checkpoint::Checkpoint> checkpoint;  ///< nothing: the run is fresh
  SavedFacts facts;                                  ///< of `checkpoint`; of a fresh run its id alone
  std::vector<std::string> changes;                  ///< rank 0: what differs from the job that wrote it, a line each
  bool in_dir = false;                               ///< `checkpoint` is in the job's folder
  bool finished = false;                             ///< it has all the steps of the job: nothing is left to do
};

/// `now`: this job as a checkpoint describes it, on rank 0. `say` tells people. Throws JobError where the job may not
/// go on from the checkpoint, where a finished run had another, or where the folder has checkpoints later than the one
/// to begin from.
Start find_start(const LoadedJob& loaded, const SavedFacts& now, Communicator& communicator, ControlChannel& channel,
                 const std::function<void(const std::string&)>& say);

}  // namespace trainer
