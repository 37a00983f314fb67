// NcclCalls: how a rank calls NCCL. Calls are made under one mutex and return at once; what NCCL does with other ranks
// (init, split, connecting at a first collective) goes on beside this thread, which polls, and so ends where another
// rank is lost or, if it gave a limit, too much time is gone. So an abort, on the channel's thread, finds no one inside
// a communicator that it ends.
#pragma once

#include <nccl.h>

#include <functional>
#include <mutex>
#include <string>

#include "engine/comm/process_channel.h"

namespace trainer {

class NcclCalls {
 public:
  /// `end_all` ends every communicator of the rank; it is called once, after an abort or a loss, maybe on a thread of
  /// the channel's, maybe before this constructor returns.
  NcclCalls(int rank, int world_size, Connections connections, OnLoss on_loss, std::function<std::string()> doing,
            std::function<void()> end_all)
      : rank_(rank),
        channel_(rank, world_size, std::move(connections), std::move(on_loss), std::move(doing), std::move(end_all)) {}

  /// Held while NCCL is called, and while a communicator is taken away.
  std::mutex& mutex() { return mutex_; }
  ProcessChannel& channel() { return channel_; }

  /// Makes `call`, which is about `comm`, under the mutex. Throws IoError with `name` where NCCL refuses it,
  /// and AbortedError after an abort, before `comm` is looked at.
  void make(const char* name, const ncclComm_t& comm, const std::function<ncclResult_t()>& call);
  /// Waits until what was asked of `comm` is done, or on its stream. limit_s 0: as long as all ranks live. `comm` is
  /// read under the mutex: another thread may set it to null.
  void settle(const ncclComm_t& comm, const char* what, double limit_s);
  /// Both: what `call` puts on a stream is there when this returns.
  template <typename Call>
  void enqueue(const ncclComm_t& comm, const char* name, Call&& call) {
    make(name, comm, [&] { return call(comm); });
    settle(comm, name, 0);
  }
  /// Waits until `comm` has no work in the background, `limit_s` at most, and not after an abort. What it then says of
  /// itself.
  ncclResult_t wait_for(const ncclComm_t& comm, double limit_s);

  /// Ends all ranks, with what went wrong in NCCL; or says which rank was lost, if that is the cause.
  [[noreturn]] void fail(const std::string& what);

  static std::string text_of(ncclResult_t result, ncclComm_t comm);

 private:
  const int rank_;
  std::mutex mutex_;
  ProcessChannel channel_;
};

/// Seconds that ranks wait for each other in NCCL's beginnings: TRAINER_RENDEZVOUS_S.
double nccl_timeout_s();

}  // namespace trainer
