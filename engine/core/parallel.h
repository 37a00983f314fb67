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

/// Calls work(i) for each i in [0, count), each once, in any order and on `most_threads` threads, or fewer. Of what is
/// thrown the error of the lowest index is raised, after all have ended.
template <typename Work>
void for_each_index(std::size_t count, Work&& work,
                    std::size_t most_threads = num_processors()) {
  const std::size_t num_threads = std::min(count, most_threads);
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t other = 1; other < num_threads; ++other) threads.emplace_back(run);
    run();
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace trainer
