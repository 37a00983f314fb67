#include "engine/comm/rank_watch.h"

#include <chrono>
#include <thread>

namespace trainer {
namespace {

constexpr std::chrono::seconds kGrace{3};  // from a loss to the end of a process that does not come out of its work

}  // namespace

RankWatch::RankWatch(OnLoss on_loss, std::function<std::string()> doing, std::function<void()> release)
    : on_loss_(std::move(on_loss)), doing_(std::move(doing)), release_(std::move(release)) {}

RankWatch::~RankWatch() { end(); }

void RankWatch::begin(int rank, int world_size, const std::function<void(void* data, std::int64_t bytes)>& broadcast) {
  if (world_size == 1) return;
  heartbeat_ = std::make_unique<Heartbeat>(
      rank, world_size, [&](const std::string& mine) { return broadcast_text(mine, broadcast); },
      [this](const std::string& reason) { lose(reason); });
}

void RankWatch::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  heartbeat_.reset();
}

void RankWatch::abort(const std::string& reason) {
  const bool first = set_aborted(reason);
  if (heartbeat_) heartbeat_->abort(reason);
  if (first) release();
}

void RankWatch::throw_aborted() const {
  const std::lock_guard lock(mutex_);
  throw AbortedError(reason_);
}

void RankWatch::prefer_word_of_heartbeat() const {
  if (!heartbeat_) return;
  for (int turn = 0; turn < 200 && !aborted(); ++turn) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  check();
}

std::string RankWatch::state() const {
  const std::string instruction = doing_ ? doing_() : "";
  if (!instruction.empty()) return instruction;
  const char* const operation = operation_.load(std::memory_order_relaxed);
  return operation == nullptr ? "works outside a program" : std::string("waits in ") + operation + " outside a program";
}

// False if the ranks had been aborted before.
bool RankWatch::set_aborted(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (aborted_.load()) return false;
  reason_ = reason;
  aborted_.store(true, std::memory_order_release);
  return true;
}

// A library that is in disorder may not come back from being told to give up.
void RankWatch::release() {
  if (!release_) return;
  bool released = false;
  std::thread releasing([&] {
    release_();
    const std::lock_guard lock(mutex_);
    released = true;
    ended_.notify_all();
  });
  {
    std::unique_lock lock(mutex_);
    if (!ended_.wait_for(lock, kGrace, [&] { return released; }) && on_loss_.end) on_loss_.end();
  }
  releasing.join();
}

// On the heartbeat's thread.
void RankWatch::lose(const std::string& reason) {
  const std::string message = reason + "; this rank " + state();
  if (!set_aborted(message)) return;
  if (on_loss_.tell) on_loss_.tell(message);
  release();
  std::unique_lock lock(mutex_);
  if (!ended_.wait_for(lock, kGrace, [&] { return ending_; }) && on_loss_.end) on_loss_.end();
}

}  // namespace trainer
