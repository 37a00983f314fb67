// Progress: how far a stream of the CPU has come, for another thread to wait on. One writer, any number of waiters.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace trainer {

class Progress {
 public:
  void reset() { last_.store(-1, std::memory_order_relaxed); }
  /// What has the number `number` in the run, and all before it on this stream, has ended.
  void advance(std::int32_t number) {
    last_.store(number, std::memory_order_release);
    last_.notify_all();
  }
  /// Nothing more will come: waiters go on and find out why.
  void stop() { advance(kStopped); }
  /// Blocks until `number` has ended. Spins for a moment first: most waits are short.
  void wait(std::int32_t number) const {
    for (int spin = 0; spin < 2000; ++spin)
      if (last_.load(std::memory_order_acquire) >= number) return;
    for (std::int32_t seen = last_.load(std::memory_order_acquire); seen < number;
         seen = last_.load(std::memory_order_acquire))
      last_.wait(seen, std::memory_order_acquire);
  }

 private:
  static constexpr std::int32_t kStopped = std::numeric_limits<std::int32_t>::max();
  std::atomic<std::int32_t> last_{-1};
};

}  // namespace trainer
