// Ranks send their hello at once, so a connection that has sent none within 5 s is closed.
#include "engine/launch/newcomers.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/system_error.h"

namespace trainer {
namespace {

using sockets::now_ms;

constexpr std::int64_t kHelloMs = 5000, kLongestWaitMs = 1000;
constexpr std::size_t kAcceptedAtOnce = 64;

}  // namespace

Newcomers::Newcomers(Descriptor listener, std::size_t hello_bytes)
    : listener_(std::move(listener)), hello_bytes_(hello_bytes) {}

void Newcomers::turn(std::vector<pollfd> others, std::int64_t deadline_ms, const Take& take) {
  std::vector<pollfd> polled = std::move(others);
  polled.push_back({listener_.get(), POLLIN, 0});
  std::int64_t until = deadline_ms;
  for (const Pending& one : pending_) {
    polled.push_back({one.socket.get(), POLLIN, 0});
    until = std::min(until, one.deadline);
  }
  const auto wait_ms = std::clamp<std::int64_t>(until - now_ms(), 0, kLongestWaitMs);
  if (::poll(polled.data(), polled.size(), static_cast<int>(wait_ms)) < 0 && errno != EINTR)
    throw IoError("waiting for ranks: poll: " + system_text(errno));
  std::erase_if(pending_, [&](Pending& one) { return hear(one, take); });
  accept_some(take);
}

void Newcomers::accept_some(const Take& take) {
  for (std::size_t i = 0; i < kAcceptedAtOnce; ++i) {
    sockets::Address from;
    Descriptor socket = sockets::accept_one(listener_, from);
    if (!socket) {
      const bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (full && !pending_.empty())
        pending_.pop_front();
      else if (full)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return;
    }
    if (pending_.size() >= kMost) pending_.pop_front();
    pending_.push_back({std::move(socket), from, now_ms() + kHelloMs, ""});
    if (hear(pending_.back(), take)) pending_.pop_back();
  }
}

// True once the connection is done with: it was taken, or it ends. One byte more than a hello is asked for, so that too
// long a one shows.
bool Newcomers::hear(Pending& one, const Take& take) const {
  std::string more(hello_bytes_ + 1, '\0');
  while (one.received.size() <= hello_bytes_) {
    const ssize_t got = ::recv(one.socket.get(), more.data(), more.size() - one.received.size(), MSG_DONTWAIT);
    if (got == 0) return true;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return true;
    if (got < 0) break;
    one.received.append(more, 0, static_cast<std::size_t>(got));
  }
  if (one.received.size() > hello_bytes_) return true;
  if (one.received.size() < hello_bytes_) return now_ms() >= one.deadline;
  take(std::move(one.socket), one.from, one.received);
  return true;
}

}  // namespace trainer
