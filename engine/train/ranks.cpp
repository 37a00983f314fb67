// Starting ranks, ending them together, and their few words.
#include "engine/train/ranks.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "engine/core/error.h"

namespace trainer {
namespace {

std::string ranks_text(int number) { return std::to_string(number) + (number == 1 ? " rank" : " ranks"); }

std::string world_of(const Job& job) {
  return "cluster.nodes " + std::to_string(job.cluster.nodes) + " × cluster.devices_per_node " + std::to_string(ranks_per_node(job));
}

void check_world(const Job& job, const Launcher& launcher) {
  const int world = static_cast<int>(job.cluster.nodes) * ranks_per_node(job);
  if (world == launcher.world_size) return;
  throw UsageError(launcher.source + " started " + ranks_text(launcher.world_size) + ", but the job has " + ranks_text(world) + ": " + world_of(job) +
                   (launcher.world_size == 1 ? "; start as many, or let cluster.backend=threads run them in one process" : "; start as many, or change the job"));
}

Backend under_launcher(const LoadedJob& loaded, const Launcher& launcher) {
  const Job& job = loaded.job;
  const std::string started = launcher.source + " started this process as rank " + std::to_string(launcher.rank) + " of " + std::to_string(launcher.world_size);
  if (job.cluster.backend == Backend::threads) throw UsageError(started + ", but cluster.backend=threads runs all ranks in one process; start one, or use mpi");
  if (!launcher.starts_mpi) throw UsageError(started + ", but on CPUs ranks in processes speak MPI, which mpirun or srun starts");
  if (!has_mpi()) throw UsageError(started + ", but this build has no MPI: install libopenmpi-dev and openmpi-bin, and build again");
  check_world(job, launcher);
  return Backend::mpi;
}

}  // namespace

int ranks_per_node(const Job& job) { return static_cast<int>(job.cluster.devices_per_node.value_or(1)); }

Backend backend_of(const LoadedJob& loaded, const std::optional<Launcher>& launcher) {
  const Job& job = loaded.job;
  if (job.cluster.backend == Backend::mpi && !has_mpi())
    throw JobError({loaded.at("cluster.backend", "this build has no MPI; install libopenmpi-dev and openmpi-bin, and build again")});
  if (launcher && launcher->world_size > 1) return under_launcher(loaded, *launcher);
  if (launcher && job.cluster.backend != Backend::threads) check_world(job, *launcher);
  const int world = static_cast<int>(job.cluster.nodes) * ranks_per_node(job);
  if (world > 1 && (job.cluster.backend == Backend::mpi || job.cluster.nodes > 1))
    throw UsageError("the job has " + ranks_text(world) + " (" + world_of(job) + "), each a process that a launcher starts: mpirun -n " + std::to_string(world) + " trainer run …, or srun");
  return job.cluster.backend == Backend::mpi ? Backend::mpi : Backend::threads;
}

void run_ranks(int world_size, const std::function<void(Communicator&)>& run) {
  const std::vector<std::unique_ptr<Communicator>> communicators = thread_communicators(world_size);
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
  std::vector<std::thread> threads;
  for (int rank = 1; rank < world_size; ++rank) threads.emplace_back(guarded, std::ref(*communicators[static_cast<std::size_t>(rank)]));
  guarded(*communicators[0]);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

void run_ranks(Communicator* process, int world_size, const std::function<void(Communicator&)>& run) {
  if (process == nullptr) return run_ranks(world_size, run);
  abort_on_error(process, [&] { run(*process); });
}

void abort_on_error(Communicator* process, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (process != nullptr) process->abort("rank " + std::to_string(process->rank()) + ": " + error.what());
    throw;
  }
}

Talk::Talk(Communicator& communicator) : communicator_(communicator) {
  std::vector<int> ranks(static_cast<std::size_t>(communicator.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  everyone_ = communicator.group(ranks);
}

std::string Talk::from_first(const std::string& mine) {
  std::int64_t size = static_cast<std::int64_t>(mine.size());
  communicator_.broadcast(*everyone_, &size, sizeof size);
  std::string text = mine;
  text.resize(static_cast<std::size_t>(size));
  communicator_.broadcast(*everyone_, text.data(), size);
  return text;
}

std::vector<std::string> Talk::to_first(const std::string& mine) {
  const std::vector<std::int64_t> sizes = each(static_cast<std::int64_t>(mine.size()));
  if (communicator_.rank() != 0) {
    const Communicator::Part part{0, const_cast<char*>(mine.data()), sizes[static_cast<std::size_t>(communicator_.rank())]};
    communicator_.exchange({&part, 1}, {});
    return {};
  }
  std::vector<std::string> texts{mine};
  for (std::size_t rank = 1; rank < sizes.size(); ++rank) {
    std::string& text = texts.emplace_back(static_cast<std::size_t>(sizes[rank]), '\0');
    const Communicator::Part part{static_cast<int>(rank), text.data(), sizes[rank]};
    communicator_.exchange({}, {&part, 1});
  }
  return texts;
}

std::int64_t Talk::largest(std::int64_t mine) {
  const std::vector<std::int64_t> values = each(mine);
  return *std::max_element(values.begin(), values.end());
}

std::vector<std::int64_t> Talk::each(std::int64_t mine) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(communicator_.world_size()));
  communicator_.all_gather(*everyone_, &mine, values.data(), sizeof mine);
  return values;
}

}  // namespace trainer
