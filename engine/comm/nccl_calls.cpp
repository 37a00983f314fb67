// Polls with Patience: most calls are done within microseconds, an init takes seconds.
#include "engine/comm/nccl_calls.h"

#include "engine/comm/patience.h"
#include "engine/core/error.h"
#include "engine/launch/launcher.h"
#include "engine/launch/rendezvous.h"

namespace trainer {

double nccl_timeout_s() { return timeout_of_rendezvous(process_environment()); }

std::string NcclCalls::text_of(ncclResult_t result, ncclComm_t comm) {
  const char* const more = comm == nullptr ? nullptr : ncclGetLastError(comm);
  return std::string(ncclGetErrorString(result)) +
         (more != nullptr && *more != '\0' ? std::string(" (") + more + ")" : "");
}

void NcclCalls::fail(const std::string& what) {
  channel_.throw_loss_if_told();
  const std::string message = "rank " + std::to_string(rank_) + ": " + what + "; this rank " + channel_.state();
  channel_.abort(message);
  throw IoError(message);
}

void NcclCalls::make(const char* name, const ncclComm_t& comm, const std::function<ncclResult_t()>& call) {
  std::unique_lock lock(mutex_);
  channel_.check();  // an abort takes the mutex before it takes communicators away
  const ncclResult_t result = call();
  const std::string why = result == ncclSuccess || result == ncclInProgress ? "" : text_of(result, comm);
  lock.unlock();
  if (!why.empty()) fail(std::string("NCCL: ") + name + ": " + why);
}

void NcclCalls::settle(const ncclComm_t& comm, const char* what, double limit_s) {
  for (const Patience patience;; patience.wait()) {
    channel_.check();
    std::unique_lock lock(mutex_);
    if (channel_.aborted()) continue;  // and `comm` is gone, or goes next
    ncclResult_t state = ncclInProgress;
    const ncclResult_t asked = comm == nullptr ? ncclSuccess : ncclCommGetAsyncError(comm, &state);
    if (asked == ncclSuccess && state == ncclSuccess) return;
    const std::string why = asked != ncclSuccess      ? text_of(asked, comm)
                            : state == ncclInProgress ? ""
                                                      : text_of(state, comm);
    lock.unlock();
    if (!why.empty()) fail(std::string("NCCL, in ") + what + ": " + why);
    if (limit_s > 0 && patience.seconds() > limit_s)
      fail("NCCL: " + std::string(what) + " is not done after " + std::to_string(static_cast<int>(limit_s)) +
           " s: a rank has not reached it, or the network does not connect the nodes (NCCL_DEBUG=INFO says more)");
  }
}

ncclResult_t NcclCalls::wait_for(const ncclComm_t& comm, double limit_s) {
  for (const Patience patience;; patience.wait()) {
    ncclResult_t state = ncclInProgress;
    {
      const std::lock_guard lock(mutex_);
      if (channel_.aborted() || comm == nullptr) return ncclInProgress;
      if (const ncclResult_t asked = ncclCommGetAsyncError(comm, &state); asked != ncclSuccess) return asked;
    }
    if (state != ncclInProgress || patience.seconds() >= limit_s) return state;
  }
}

}  // namespace trainer
