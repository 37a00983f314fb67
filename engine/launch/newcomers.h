// Newcomers: connections to a port that anyone may reach, until each has said who it is. All are heard at once, so that
// those that say nothing delay no one; their number is bounded, and the one silent for longest makes room. What
// rank 0 listens with in a rendezvous.
#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "engine/launch/sockets.h"

namespace trainer {

class Newcomers {
 public:
  /// Gets a connection whose first `hello_bytes` bytes have come, and no others.
  using Take = std::function<void(Descriptor socket, const sockets::Address& from, const std::string& hello)>;
  static constexpr std::size_t kMost = 256;

  Newcomers(Descriptor listener, std::size_t hello_bytes);

  /// Waits until something comes, on the connections here or on `others`, but not beyond `deadline_ms`; then takes who
  /// has spoken. Throws IoError where the system cannot wait.
  void turn(std::vector<pollfd> others, std::int64_t deadline_ms, const Take& take);

 private:
  struct Pending {
    Descriptor socket;
    sockets::Address from;
    std::int64_t deadline = 0;
    std::string received;
  };

  void accept_some(const Take& take);
  bool hear(Pending& one, const Take& take) const;

  Descriptor listener_;
  std::size_t hello_bytes_;
  std::deque<Pending> pending_;  // in the order they came
};

}  // namespace trainer
