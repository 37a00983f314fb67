// Independent work on the processors that are there. What comes out must not depend on how many that is: each index has
// its own result, and no index sees another's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace trainer {

/// Threads that the process may run at once, at least one. Asked once: the answer is read from files of the kernel.
inline std::size_t num_processors() {
  static const std::size_t count = std::max(1U, std::thread::hardware_concurrency());
  return count;
}

/// Calls work(i, lane) for each i in [0, count), each once, in any order, on `lanes` threads at most. `lane` is below
/// `lanes`, and one thread's at a time, for what a thread keeps from one index to the next. Of what is thrown the error
/// of the lowest index is raised, after all have ended.
template <typename Work>
void for_each_index_in_lanes(std::size_t count, std::size_t lanes, Work&& work) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next{0};
  const auto run = [&](std::size_t lane) {
    for (std::size_t i = next++; i < count; i = next++) try {
        work(i, lane);
      } catch (...) {
        errors[i] = std::current_exception();
      }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t lane = 1; lane < std::min(count, lanes); ++lane) threads.emplace_back(run, lane);
    run(0);
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// The same of work that keeps nothing: work(i).
template <typename Work>
void for_each_index(std::size_t count, Work&& work, std::size_t most_threads = num_processors()) {
  for_each_index_in_lanes(count, most_threads, [&](std::size_t i, std::size_t) { work(i); });
}

}  // namespace trainer
