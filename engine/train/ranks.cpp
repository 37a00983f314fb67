// Starting ranks, and ending them together.
#include "engine/train/ranks.h"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "engine/comm/host_communicator.h"
#include "engine/comm/stream_communicator.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/core/system_error.h"
#include "engine/run/cuda_device.h"

namespace trainer {
namespace {

std::string ranks_text(int number) { return std::to_string(number) + (number == 1 ? " rank" : " ranks"); }

std::string world_of(const Job& job) {
  return "cluster.nodes " + std::to_string(job.cluster.nodes) + " × cluster.devices_per_node " +
         std::to_string(ranks_per_node(job));
}

void check_world(const Job& job, const Launcher& launcher) {
  const int world = static_cast<int>(job.cluster.nodes) * ranks_per_node(job);
  if (world == launcher.world_size) return;
  throw UsageError(launcher.source + " started " + ranks_text(launcher.world_size) + ", but the job has " +
                   ranks_text(world) + ": " + world_of(job) +
                   (launcher.world_size == 1 ? "; start as many, or let cluster.backend=threads run them in one process"
                                             : "; start as many, or change the job"));
}

Backend under_launcher(const LoadedJob& loaded, const Launcher& launcher) {
  const Job& job = loaded.job;
  const std::string started = launcher.source + " started this process as rank " + std::to_string(launcher.rank) +
                              " of " + std::to_string(launcher.world_size);
  if (job.cluster.backend == Backend::threads)
    throw UsageError(started + ", but cluster.backend=threads runs all ranks in one process; start one, or use mpi");
  if (!launcher.starts_mpi)
    throw UsageError(started + ", but on CPUs ranks in processes speak MPI, which mpirun or srun starts");
  if (!has_mpi())
    throw UsageError(started + ", but this build has no MPI: install libopenmpi-dev and openmpi-bin, and build again");
  check_world(job, launcher);
  return Backend::mpi;
}

// Each rank has a process of its own, so that a launcher is not needed on one node, and any that says rank and size
// will do.
Backend on_gpus(const LoadedJob& loaded, const std::optional<Launcher>& launcher) {
  const Job& job = loaded.job;
  if (job.cluster.backend == Backend::mpi)
    throw JobError({loaded.at("cluster.backend", "ranks on GPUs speak NCCL, however they are started (mpirun as well)",
                              "auto or nccl")});
  if (launcher) check_world(job, *launcher);
  if (static_cast<int>(job.cluster.nodes) * ranks_per_node(job) == 1) return Backend::threads;
  if (!has_nccl())
    throw JobError(
        {loaded.at("cluster.devices_per_node",
                   "several GPUs need NCCL, which this build has not; install it (libnccl-dev) and build again")});
  return Backend::nccl;
}

}  // namespace

std::unique_ptr<DeviceBackend> device_for(const Job& job, const Communicator& communicator, int threads) {
  if (job.cluster.device != Device::cuda) return cpu_device(threads, job.strategy.offload.dir);
  const auto* of_gpus = dynamic_cast<const StreamCommunicator*>(&communicator);
  CHECK(of_gpus != nullptr || communicator.world_size() == 1, "ranks of GPUs have a communicator of GPUs");
  return cuda_device({.ordinal = of_gpus != nullptr ? of_gpus->device_ordinal() : 0, .on_host = host_kernels(threads)});
}

int ranks_per_node(const Job& job) { return static_cast<int>(job.cluster.devices_per_node.value_or(1)); }

Backend backend_of(const LoadedJob& loaded, const std::optional<Launcher>& launcher) {
  const Job& job = loaded.job;
  if (job.cluster.device == Device::cuda) return on_gpus(loaded, launcher);
  if (job.cluster.backend == Backend::mpi && !has_mpi())
    throw JobError({loaded.at("cluster.backend",
                              "this build has no MPI; install libopenmpi-dev and openmpi-bin, and build again")});
  if (launcher && launcher->world_size > 1) return under_launcher(loaded, *launcher);
  if (launcher && job.cluster.backend != Backend::threads) check_world(job, *launcher);
  const int world = static_cast<int>(job.cluster.nodes) * ranks_per_node(job);
  if (world > 1 && (job.cluster.backend == Backend::mpi || job.cluster.nodes > 1))
    throw UsageError("the job has " + ranks_text(world) + " (" + world_of(job) +
                     "), each a process that a launcher starts: mpirun -n " + std::to_string(world) +
                     " trainer run …, or srun");
  return job.cluster.backend == Backend::mpi ? Backend::mpi : Backend::threads;
}

int gpu_of_rank(const Launcher& launcher, int gpus, bool share) {
  const std::string rank = "rank " + std::to_string(launcher.rank);
  if (gpus == 0) throw UsageError(rank + " sees no GPU; is there one, and what does CUDA_VISIBLE_DEVICES say?");
  if (gpus == 1) return 0;
  if (!launcher.local_rank)
    throw UsageError(rank + " sees " + std::to_string(gpus) + " GPUs, but " + launcher.source +
                     " does not say which rank of its node it is: export LOCAL_RANK, or let each process see one GPU "
                     "alone (CUDA_VISIBLE_DEVICES)");
  if (*launcher.local_rank < gpus) return *launcher.local_rank;
  if (share) return *launcher.local_rank % gpus;
  throw UsageError(rank + " has local rank " + std::to_string(*launcher.local_rank) + ", but its node has " +
                   std::to_string(gpus) +
                   " GPUs that it may use: start fewer ranks on each node (cluster.devices_per_node), or see to "
                   "CUDA_VISIBLE_DEVICES");
}

std::string misplaced(const std::vector<rendezvous::RankPlace>& places, int ranks_per_node, bool share) {
  if (share) return "";
  std::map<std::pair<std::string, std::string>, std::size_t> gpus;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto [at, is_new] = gpus.emplace(std::pair(places[rank].host, places[rank].fingerprint), rank);
    if (!is_new)
      throw UsageError("ranks " + std::to_string(at->second) + " and " + std::to_string(rank) + " are both on " +
                       places[rank].fingerprint + " of " + places[rank].host +
                       ": each rank needs a GPU of its own; do their processes have their local ranks (LOCAL_RANK), "
                       "and does CUDA_VISIBLE_DEVICES show all GPUs to all, or each its own?");
  }
  const auto node = static_cast<std::size_t>(std::max(1, ranks_per_node));
  for (std::size_t rank = 0; rank < places.size(); ++rank)
    if (const std::size_t first = rank / node * node; places[rank].host != places[first].host)
      return "the plan has ranks " + std::to_string(first) + " and " + std::to_string(rank) +
             " on one node, but they are on " + places[first].host + " and " + places[rank].host +
             ": the job will be slower than planned; number ranks node by node (srun --distribution=block, mpirun "
             "--map-by slot)";
  return "";
}

void run_ranks(int world_size, const std::function<void(Communicator&)>& run) {
  const std::vector<std::unique_ptr<HostCommunicator>> communicators = thread_communicators(world_size);
  std::mutex mutex;
  std::exception_ptr failure;
  bool failure_is_abort = false;
  const auto guarded = [&](Communicator& communicator) {
    try {
      run(communicator);
    } catch (const std::exception& error) {
      const bool abort = dynamic_cast<const AbortedError*>(&error) != nullptr;
      {
        const std::lock_guard lock(mutex);
        if (!failure || (failure_is_abort && !abort)) {
          failure = std::current_exception();
          failure_is_abort = abort;
        }
      }
      communicator.abort("rank " + std::to_string(communicator.rank()) + ": " + error.what());
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (int rank = 1; rank < world_size; ++rank)
        threads.emplace_back(guarded, std::ref(*communicators[static_cast<std::size_t>(rank)]));
    } catch (const std::system_error&) {
      communicators[0]->abort("not every rank could be started");
      throw IoError("starting the threads of " + ranks_text(world_size) + ": " + threads_refused());
    }
    guarded(*communicators[0]);
  }
  if (failure) std::rethrow_exception(failure);
}

void run_ranks(Communicator* process, int world_size, const std::function<void(Communicator&)>& run) {
  if (process == nullptr) return run_ranks(world_size, run);
  abort_on_error(process, [&] { run(*process); });
}

// Of each rank: its own thread or the caller's, those that help it, the loader's, one that writes checkpoints, and two
// that move what is kept on disk.
void require_threads_of(const Job& job, const Communicator* process, int threads) {
  if (job.cluster.device != Device::cpu) return;
  const int ranks = process == nullptr ? static_cast<int>(job.cluster.nodes) * ranks_per_node(job) : 1;
  const int writers = job.checkpoint.dir && job.checkpoint.behind ? 1 : 0;
  const int movers = job.strategy.offload.uses_disk() ? 2 : 0;
  require_threads(ranks * (threads + 1 + writers + movers) - 1);
}

void abort_on_error(Communicator* process, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (process != nullptr) process->abort("rank " + std::to_string(process->rank()) + ": " + error.what());
    throw;
  }
}

}  // namespace trainer
