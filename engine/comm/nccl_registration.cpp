// On each communicator first a symmetric window is tried, then an ordinary buffer.
#include "engine/comm/nccl_registration.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/core/index.h"

namespace trainer {
namespace {

constexpr double kUndone_s = 10;  // for a window to go

}  // namespace

void NcclRegistration::add(void* base, std::int64_t bytes, std::span<const Target> targets) {
  CHECK(!registered_.contains(base), "memory is registered once");
  std::vector<One>& made = registered_[base];
  for (const Target& target : targets) add_to(target, base, bytes, made);
}

void NcclRegistration::remove(void* base) {
  const auto found = registered_.find(base);
  CHECK(found != registered_.end(), "only what is registered can be unregistered");
  for (const One& one : found->second) undo(one);
  registered_.erase(found);
}

void NcclRegistration::remove_all() {
  while (!registered_.empty()) remove(registered_.begin()->first);
}

void NcclRegistration::remove_from(ncclComm_t comm) {
  for (auto& [base, all] : registered_)
    std::erase_if(all, [&](const One& one) {
      if (one.comm != comm) return false;
      undo(one);
      return true;
    });
}

// Memory of cudaMalloc may be registered as a buffer: NCCL takes what is safe of it and leaves what would synchronise
// (NCCL_LEGACY_CUDA_REGISTER). A rank that has registered votes in the second round too.
void NcclRegistration::add_to(const Target& target, void* base, std::int64_t bytes, std::vector<One>& made) {
  bool done = target.comm == nullptr;
  for (const bool as_window : {true, false}) {
    One one{target.comm, nullptr, nullptr};
    const bool tried = !done && (!as_window || target.window);
    if (tried) as_window ? make_window(one, base, bytes) : make_buffer(one, base, bytes);
    const bool failed = tried && one.handle == nullptr && one.window == nullptr;
    if (calls_.channel().any(failed)) {
      undo(one);
    } else if (tried) {
      made.push_back(one);
      done = true;
    }
  }
}

void NcclRegistration::make_window(One& one, void* base, std::int64_t bytes) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  std::unique_lock lock(calls_.mutex());
  calls_.channel().check();
  const ncclResult_t result = ncclCommWindowRegister(one.comm, base, size(bytes), &one.window, NCCL_WIN_COLL_SYMMETRIC);
  lock.unlock();
  // It goes on in the background even where the result is success, and writes the window at its end.
  if (result == ncclSuccess || result == ncclInProgress)
    calls_.settle(one.comm, "the registration of memory (NCCL_WIN_ENABLE=0 does without windows)", nccl_timeout_s());
  else
    one.window = nullptr;
#else
  static_cast<void>(one), static_cast<void>(base), static_cast<void>(bytes);
#endif
}

void NcclRegistration::make_buffer(One& one, void* base, std::int64_t bytes) {
  const std::lock_guard lock(calls_.mutex());
  calls_.channel().check();
  if (ncclCommRegister(one.comm, base, size(bytes), &one.handle) != ncclSuccess) one.handle = nullptr;
}

// Memory may be freed after it: so what goes on in the background is waited for.
void NcclRegistration::undo(const One& one) {
  {
    const std::lock_guard lock(calls_.mutex());
    if (calls_.channel().aborted() || one.comm == nullptr) return;
    if (one.handle != nullptr) ncclCommDeregister(one.comm, one.handle);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    if (one.window == nullptr) return;
    ncclCommWindowDeregister(one.comm, one.window);
#endif
  }
  if (one.window != nullptr) calls_.wait_for(one.comm, kUndone_s);
}

}  // namespace trainer
