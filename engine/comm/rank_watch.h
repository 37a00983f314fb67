// RankWatch: how a rank in a process of its own ends with the others. It hears their heartbeats; when one is lost or
// gives up, every wait of this rank throws AbortedError, whoever runs it is told once, with what this rank was doing,
// and a process that does not come out of its work (a kernel or a library holds it) ends some seconds later. What the
// communicators between processes share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "engine/comm/communicator.h"
#include "engine/launch/heartbeat.h"

namespace trainer {

class RankWatch {
 public:
  /// `doing`: what the rank does in a program, or "" (Communicator::doing). `release` is called once after an abort or
  /// a loss, on a thread of its own: it frees the rank from waits that do not look at aborted() themselves; null: there
  /// are none. Where it does not come back, the process ends as well.
  RankWatch(OnLoss on_loss, std::function<std::string()> doing, std::function<void()> release = nullptr);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  /// From now on ranks hear each other; collective. `broadcast` gives everyone rank 0's bytes. Throws IoError as
  /// Heartbeat does.
  void begin(int rank, int world_size, const std::function<void(void* data, std::int64_t bytes)>& broadcast);
  /// Says goodbye to the others; nothing is told after it. Once, by the destructor at the latest.
  void end();

  /// This rank gives up: its own waits throw, and so do those of the others.
  void abort(const std::string& reason);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  [[noreturn]] void throw_aborted() const;
  /// Throws if there was an abort.
  void check() const {
    if (aborted()) throw_aborted();
  }
  /// A library may notice a loss before the heartbeat does, but cannot say whose: waits up to 2 s for the heartbeat's
  /// word, and throws it.
  void prefer_word_of_heartbeat() const;

  /// What this rank waits in outside programs, for messages; null: nothing. The text outlives the wait.
  void waits_in(const char* operation) { operation_.store(operation, std::memory_order_relaxed); }
  /// What it does: "waits in all_reduce …".
  std::string state() const;

 private:
  bool set_aborted(const std::string& reason);
  void lose(const std::string& reason);
  void release();

  OnLoss on_loss_;
  std::function<std::string()> doing_;
  std::function<void()> release_;
  std::atomic<const char*> operation_{nullptr};
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  std::string reason_;
  bool ending_ = false;
  std::unique_ptr<Heartbeat> heartbeat_;
};

}  // namespace trainer
