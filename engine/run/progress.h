// Progress: how far a stream has come, for another thread to wait on. One writer, any number of waiters.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace trainer {

class Progress {
 public:
  static constexpr std::int32_t kStopped = std::numeric_limits<std::int32_t>::max();

  void reset() { last_.store(-1, std::memory_order_relaxed); }
  /// Instruction `index` and all before it on this stream have ended.
  void advance(std::int32_t index) {
    last_.store(index, std::memory_order_release);
    last_.notify_all();
  }
  /// Nothing more will come: waiters go on and find out why.
  void stop() { advance(kStopped); }
  /// Blocks until `index` has ended. Spins for a moment first: most waits are short.
  void wait(std::int32_t index) const {
    for (int spin = 0; spin < 2000; ++spin)
      if (last_.load(std::memory_order_acquire) >= index) return;
    for (std::int32_t seen = last_.load(std::memory_order_acquire); seen < index; seen = last_.load(std::memory_order_acquire)) last_.wait(seen, std::memory_order_acquire);
  }

 private:
  std::atomic<std::int32_t> last_{-1};
};

}  // namespace trainer
