// Heartbeat: whether the processes of the other ranks live. Every rank holds a TCP connection to rank 0 and sends a
// byte each second from a thread of its own, so that a long computation is no silence. A connection that ends without a
// goodbye is a process that died; one that carries nothing for 8 s (TRAINER_SILENT_S) is one that hangs: stopped, or on
// a machine that is gone. Rank 0 tells the others. The 8 s leave 7 of the 15 in which all must have ended to a launcher
// on a busy machine. A process that was itself stopped for a while forgives: it cannot know who beat meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/file.h"

namespace trainer {

class Heartbeat {
 public:
  /// Connects, collectively: `broadcast` gives every rank rank 0's bytes. `lost` is called once, on the heartbeat's
  /// thread, with why the ranks cannot go on ("rank 2 has been silent for 8 s", or what a rank gave to abort); never
  /// for this rank's own abort. Throws IoError where ranks cannot reach rank 0 within half a minute.
  Heartbeat(int rank, int world_size, const std::function<std::string(const std::string&)>& broadcast,
            std::function<void(const std::string&)> lost);
  /// Says goodbye: the others hear that this rank has ended well (or that nobody is left to care).
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// Tells every other rank why this one gives up.
  void abort(const std::string& reason);

 private:
  struct Peer {
    int rank = 0;
    Descriptor socket;
    std::string received;       ///< an unfinished message
    std::int64_t heard_ms = 0;  ///< when it was last heard
    bool ended = false;         ///< it said goodbye
  };

  void listen(int world_size, const std::function<std::string(const std::string&)>& broadcast);
  void take(Descriptor socket, const std::string& hello, int world_size);
  bool all_here(int world_size);
  std::string missing_of(int world_size) const;
  void connect(const std::function<std::string(const std::string&)>& broadcast);
  void beat();
  void send_all(const std::string& message);
  bool hear(Peer& peer);
  bool take_messages(Peer& peer);
  void lose(const std::string& reason);

  const int rank_;
  const std::int64_t silent_ms_;
  std::function<void(const std::string&)> lost_;
  std::vector<Peer> peers_;  // of rank 0: all others; of the others: rank 0
  std::mutex sending_;
  std::atomic<bool> over_{false};  // a loss was told, or this rank aborted
  Descriptor wake_;                // an eventfd: written once, to stop
  std::thread thread_;
};

}  // namespace trainer
