// Ranks are threads, of which the first that fails ends all.
#include "tests/cuda/emulated_jobs.h"

#include <doctest/doctest.h>

#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/comm/stream_communicator.h"
#include "engine/train/replicas.h"
#include "tests/cuda/emulated/emulated.h"
#include "tests/launch/star.h"

namespace trainer::tests {

namespace {

class Ranks {
 public:
  Ranks(const GpuJob& job, TrainOptions options, std::function<void(std::int64_t)> after_step)
      : job_(job),
        options_(std::move(options)),
        after_step_(std::move(after_step)),
        id_(nccl_unique_id()),
        replicas_(job.compiled.plan) {
    options_.at_end = [this](int rank, const Executor& executor) { replicas_.add(rank, executor); };
  }

  Trained run(int world) {
    star_ = star_of(world);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank) threads.emplace_back([this, rank, world] { train(rank, world); });
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    CHECK(replicas_.different() == std::vector<std::string>{});
    return std::move(trained_);
  }

 private:
  void train(int rank, int world) {
    try {
      const std::unique_ptr<StreamCommunicator> mine =
          nccl_communicator({rank, world, 0, id_}, std::move(star_[static_cast<std::size_t>(rank)]),
                            {.tell = [](const std::string&) {}, .end = [] {}});
      TrainOptions options = options_;
      options.process = mine.get();
      Trained told = tests::run(job_.loaded, job_.compiled, rank == 0 ? after_step_ : nullptr, options);
      if (rank == 0) trained_ = std::move(told);
    } catch (const std::exception& error) {
      const bool released = dynamic_cast<const AbortedError*>(&error) != nullptr;
      const std::lock_guard lock(mutex_);
      if (!failure_ || (failure_released_ && !released)) {
        failure_ = std::current_exception();
        failure_released_ = released;
      }
    }
  }

  const GpuJob& job_;
  TrainOptions options_;
  const std::function<void(std::int64_t)> after_step_;
  const std::string id_;
  Replicas replicas_;
  std::vector<Connections> star_;
  Trained trained_;
  std::mutex mutex_;
  std::exception_ptr failure_;
  bool failure_released_ = false;
};

}  // namespace

Trained run(const GpuJob& job, std::uint64_t order, TrainOptions options,
            std::function<void(std::int64_t)> after_step) {
  struct Order {
    explicit Order(std::uint64_t order) { emulated::settings().order = order; }
    ~Order() { emulated::settings().order = 0; }
  } const set(order);
  options.threads = 1;
  from_the_start(job.loaded);
  const int world = job.compiled.plan.mesh.world_size();
  if (world == 1) return run(job.loaded, job.compiled, after_step, std::move(options));
  return Ranks(job, std::move(options), std::move(after_step)).run(world);
}

}  // namespace trainer::tests
