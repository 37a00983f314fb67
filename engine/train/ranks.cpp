// Starting ranks, and ending them together.
#include "engine/train/ranks.h"

#include <exception>
#include <mutex>
#include <thread>

namespace trainer {

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

}  // namespace trainer
