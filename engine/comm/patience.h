// Patience: how a thread polls for what takes microseconds or seconds. A short wait spins; a longer one sleeps for an
// eighth of what it has waited, so that the cores are left to those who compute. (Yielding instead is slow where
// processes outnumber cores: who yields has used up its turn, who sleeps is woken first.)
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace trainer {

class Patience {
 public:
  double seconds() const { return std::chrono::duration<double>(waited()).count(); }
  void wait() const {
    constexpr std::chrono::microseconds kSpin{50}, kLongestSleep{200};
    if (const auto so_far = waited(); so_far > kSpin)
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(so_far / 8, kLongestSleep));
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::duration waited() const { return Clock::now() - begin_; }
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace trainer
