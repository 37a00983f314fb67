// Launcher: who started this process, as which of how many. A pure function of the environment: sources that contradict
// each other, or say half of what they should, are errors that show what each says; nothing is guessed.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace trainer {

using EnvironmentMap = std::map<std::string, std::string>;

struct Launcher {
  std::string source;  ///< "Open MPI", "Slurm", "PMIx", "Kubernetes", "trainer run" or "torchrun-style variables";
                       ///< several that agree are joined by " and " (PMIx is named alone)
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank;  ///< among the ranks of this node, where the source says so
  bool starts_mpi = false;        ///< MPI can begin here: mpirun or srun started the process
};

/// What the variables of launchers say; nothing where no launcher set any. Read are
///   Open MPI                  OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK
///   Slurm, in an srun step    SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID; not those of a batch script or of a daemon
///                             of mpirun's
///   PMIx                      PMIX_RANK, PMIX_SIZE; without the latter the size must come from another source
///   torchrun-style variables  RANK, WORLD_SIZE, LOCAL_RANK (may be missing), MASTER_ADDR with MASTER_PORT; trainer run
///                             sets them for ranks that it starts itself (TRAINER_STARTED)
///   Kubernetes                WORLD_SIZE with JOB_COMPLETION_INDEX in place of RANK: an indexed job with a pod for
///                             each rank
/// Throws UsageError for values that are not such numbers, for half-set variables, and for sources that contradict each
/// other.
std::optional<Launcher> detect_launcher(const EnvironmentMap& environment);

/// A process that is started once on each node, and starts the node's ranks itself.
struct NodePlace {
  std::string source;  ///< "NODE_RANK" or "JOB_COMPLETION_INDEX"
  int node = 0;
  int nodes = 1;
};

/// What NNODES and NODE_RANK say, or NNODES and JOB_COMPLETION_INDEX: an indexed job of Kubernetes with a pod for each
/// node. Nothing without NNODES. Asked where detect_launcher found nothing. Throws UsageError as it does.
std::optional<NodePlace> detect_node(const EnvironmentMap& environment);

/// The environment of this process.
EnvironmentMap process_environment();

}  // namespace trainer
