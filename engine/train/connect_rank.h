// How a process becomes a rank of a job: its connection to the other ranks by the job's backend, and its share of the
// machine's cores. Where the job's ranks are processes that nobody has started yet: which of them this node has to
// start.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/job/job.h"
#include "engine/launch/launcher.h"
#include "engine/launch/start_ranks.h"
#include "engine/plan/plan.h"

namespace trainer {

struct ConnectedRank {
  std::unique_ptr<Communicator> process;  ///< this process's rank; null: ranks are threads of this process
  int threads = 1;                        ///< of one rank, the same on all
};

/// Who hears what happens on the way, and of lost ranks from then on.
struct RankListener {
  OnLoss on_loss;
  std::function<void(const std::string&)> say;       ///< gets lines for people that concern this rank
  std::function<void(const std::string&)> say_once;  ///< gets those that are the same on all ranks
};

/// Connects the process that `launcher` started (null: nobody did) to the job's other ranks; collective over them.
/// Throws UsageError where launcher, job and MPI do not fit each other, JobError and IoError as backend_of and the
/// rendezvous do.
ConnectedRank connect_rank(const LoadedJob& loaded, const std::optional<Launcher>& launcher,
                           const RankListener& listener);

/// Throws UsageError where another process has another plan: job files, overrides or machines differ, and they would
/// meet in the wrong collectives. Every process calls it; with null, ranks are threads, which have one plan.
void check_same_plan(Communicator* process, const Plan& plan);

/// The cores that a process may use, as its launcher binds it, and the machine that they are of.
struct Cores {
  std::string host;
  std::vector<bool> usable;  ///< by number

  std::string str() const;
  static Cores parse(const std::string& text);
};
/// Threads of a rank, given the cores of all ranks: those that may use the same cores share them, and the rank with the
/// fewest decides, since all run one plan.
int fewest_threads(const std::vector<Cores>& ranks);

/// Which of the job's `nodes` nodes this process stands for, where it starts the node's ranks itself. Throws UsageError
/// where the environment does not say, or says something else than the job.
NodePlace node_of_job(const EnvironmentMap& environment, int nodes);

/// The job's ranks on `node`, a process for each of its GPUs; whoever starts them adds the command. `gpus`: those that
/// can be used here; `share`: they are dealt to more ranks than there are. Throws UsageError where there are too few.
RanksToStart gpu_ranks_of(const Job& job, const NodePlace& node, const EnvironmentMap& environment, int gpus,
                          bool share);

/// Whether ranks may share a GPU (TRAINER_SHARE_GPU).
bool shares_gpus();

}  // namespace trainer
