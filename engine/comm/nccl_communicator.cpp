// Ranks as GPUs, by NCCL: collectives on streams, and the memory that they use. What ranks tell each other on the host
// goes over their process channel; NCCL never carries it.
//
// Several communicators of a rank work at once, on streams of their own. Two conditions keep them from waiting on each
// other. Their kernels must all be resident at once, since a kernel of NCCL holds its multiprocessors until the other
// ranks have reached it: so each takes at most an eighth of them (config.maxCTAs), and the three that a plan runs
// beside each other leave most to computation, which ends by itself. And where the device runs them one after another
// after all (streams share hardware queues), it does so in the order of issue, which engine/plan/verify/communication.h
// proves to be free of deadlock. Branches of a captured graph have no such order of their own, so NCCL is told to keep
// the order of issue between communicators (NCCL_LAUNCH_ORDER_IMPLICIT=1, unless the environment says otherwise): a
// collective starts after the one issued before it has started. Children share nothing of their parents
// (config.splitShare=0): what shares resources is run one after another. (NCCL's user guide: "Using multiple NCCL
// communicators concurrently", "Creating a communicator with options".)
//
// After a loss ncclCommAbort makes the kernels in flight return, those of replayed graphs as well, and the streams run
// empty. It returns when no graph holds work of its communicator any more, and a graph can be destroyed when all its
// work has ended. So all communicators are aborted in one group, which tells each to end before it waits for any.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/comm/nccl_calls.h"
#include "engine/comm/nccl_registration.h"
#include "engine/comm/stream_communicator.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/core/index.h"

namespace trainer {
namespace {

constexpr double kGoodbye_s = 10;  // for a communicator to end in, once all ranks are done
constexpr int kShareOfUnits = 8;   // of the multiprocessors, each communicator takes one in so many
constexpr int kMaxChannels = 32;   // more bring NCCL nothing inside a node

// Set before main: while threads run, another one may be reading the environment (setenv(3): MT-Unsafe const:env).
[[maybe_unused]] const int kOrderOfIssue = ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::f64:
      return ncclFloat64;
    case DType::i32:
      return ncclInt32;
    case DType::u8:
      return ncclUint8;
  }
  return ncclNumTypes;
}

cudaStream_t cuda(void* stream) { return static_cast<cudaStream_t>(stream); }

void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw IoError(std::string(call) + ": " + cudaGetErrorString(status));
}

std::byte* at(void* data, std::int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }
const std::byte* at(const void* data, std::int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; }
class NcclCommunicator;

struct NcclGroup final : StreamCommunicator::StreamGroup {
  explicit NcclGroup(NcclCommunicator& of) : owner(of) {}
  ~NcclGroup() override;
  int size() const override { return static_cast<int>(members.size()); }
  int index() const override { return place; }

  NcclCommunicator& owner;
  std::string name;
  std::vector<int> members;  // ranks of the world, in order
  int place = 0;
  ncclComm_t comm = nullptr;
};

class NcclCommunicator final : public StreamCommunicator {
 public:
  NcclCommunicator(const NcclPlace& place, Connections connections, OnLoss on_loss)
      : StreamCommunicator(place.device_ordinal),
        exceptions_(std::uncaught_exceptions()),
        rank_(place.rank),
        world_size_(place.world_size),
        calls_(
            place.rank, place.world_size, std::move(connections), std::move(on_loss), [this] { return doing(); },
            [this] { abort_all(); }) {
    try {
      use_device();
      initialize(place);
    } catch (const std::exception& error) {
      abort("rank " + std::to_string(rank_) + ": " + error.what());
      abort_all();  // also what began after an abort from elsewhere
      throw;
    }
  }

  ~NcclCommunicator() override {
    // A rank that leaves by an exception no longer meets the others.
    if (std::uncaught_exceptions() > exceptions_) abort("rank " + std::to_string(rank_) + " failed");
    registration_.remove_all();
    finish(world_);
    calls_.channel().end();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  ControlChannel& control() override { return calls_.channel(); }
  void abort(const std::string& reason) override { calls_.channel().abort(reason); }

  // ---- Groups ----

  // Everyone learns everyone's color and key, and so who is in its group.
  std::unique_ptr<StreamGroup> split(int color, int key) override {
    const std::vector<std::int64_t> all = control().each(std::int64_t{color} << 32 | static_cast<std::uint32_t>(key));
    std::vector<std::pair<int, int>> members;  // key, rank
    for (int other = 0; other < world_size_; ++other)
      if (color >= 0 && all[size(other)] >> 32 == color)
        members.emplace_back(static_cast<std::int32_t>(all[size(other)]), other);
    std::sort(members.begin(), members.end());
    auto group = std::make_unique<NcclGroup>(*this);
    const int number = num_splits_++;
    group->name = "split " + std::to_string(number) + " of the world into groups";
    for (const auto& [its_key, other] : members) {
      if (other == rank_) group->place = group->size();
      group->members.push_back(other);
    }
    ncclConfig_t config = configuration("a group");
    // NCCL gives the group its communicator at the end of the split, in the background; until then the world's state
    // tells how it goes.
    calls_.make("ncclCommSplit", world_, [&] {
      if (color >= 0) groups_[number] = group.get();  // from now on an abort ends it as well
      return ncclCommSplit(world_, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &group->comm, &config);
    });
    calls_.settle(world_, group->name.c_str(), nccl_timeout_s());
    if (color < 0) return nullptr;
    calls_.settle(group->comm, group->name.c_str(), nccl_timeout_s());
    return group;
  }

  // ---- Collectives ----

  void all_reduce(StreamGroup& group, DType dtype, void* data, std::int64_t elements, void* stream) override {
    NcclGroup& own = of(group);
    calls_.enqueue(own.comm, "ncclAllReduce", [&](ncclComm_t comm) {
      return ncclAllReduce(data, data, size(elements), type_of(dtype), ncclSum, comm, cuda(stream));
    });
    count_sent(2 * elements * size_of(dtype), own.size());
  }

  void reduce_scatter(StreamGroup& group, DType dtype, const void* input, void* output, std::int64_t elements,
                      void* stream) override {
    NcclGroup& own = of(group);
    CHECK(elements % own.size() == 0, "the elements of a reduce_scatter divide by its members");
    calls_.enqueue(own.comm, "ncclReduceScatter", [&](ncclComm_t comm) {
      return ncclReduceScatter(input, output, size(elements / own.size()), type_of(dtype), ncclSum, comm, cuda(stream));
    });
    count_sent(elements * size_of(dtype), own.size());
  }

  void all_gather(StreamGroup& group, const void* input, void* output, std::int64_t bytes, void* stream) override {
    NcclGroup& own = of(group);
    calls_.enqueue(own.comm, "ncclAllGather", [&](ncclComm_t comm) {
      return ncclAllGather(input, output, size(bytes), ncclUint8, comm, cuda(stream));
    });
    count_sent(bytes * own.size(), own.size());
  }

  void all_to_all(StreamGroup& group, const void* input, void* output, std::int64_t bytes, void* stream) override {
    NcclGroup& own = of(group);
    calls_.enqueue(own.comm, "an all_to_all", [&](ncclComm_t comm) {
      return grouped([&](auto&& issue) {
        for (int peer = 0; peer < own.size(); ++peer) {
          issue(ncclSend(at(input, peer * bytes), size(bytes), ncclUint8, peer, comm, cuda(stream)));
          issue(ncclRecv(at(output, peer * bytes), size(bytes), ncclUint8, peer, comm, cuda(stream)));
        }
      });
    });
    count_sent(bytes * own.size(), own.size());
  }

  void shift(StreamGroup& group, const void* input, void* output, std::int64_t bytes, void* stream) override {
    NcclGroup& own = of(group);
    const int next = (own.place + 1) % own.size(), before = (own.place + own.size() - 1) % own.size();
    calls_.enqueue(own.comm, "a shift", [&](ncclComm_t comm) {
      return grouped([&](auto&& issue) {
        issue(ncclSend(input, size(bytes), ncclUint8, next, comm, cuda(stream)));
        issue(ncclRecv(output, size(bytes), ncclUint8, before, comm, cuda(stream)));
      });
    });
    bytes_sent_ += bytes;
  }

  void broadcast(StreamGroup& group, void* data, std::int64_t bytes, void* stream) override {
    NcclGroup& own = of(group);
    calls_.enqueue(own.comm, "ncclBroadcast", [&](ncclComm_t comm) {
      return ncclBroadcast(data, data, size(bytes), ncclUint8, 0, comm, cuda(stream));
    });
    if (own.place + 1 < own.size()) bytes_sent_ += bytes;  // a pipelined ring: all but the last pass it on
  }

  void exchange(std::span<const Part> sends, std::span<const Part> receives, void* stream) override {
    if (sends.empty() && receives.empty()) return;
    calls_.enqueue(world_, "an exchange", [&](ncclComm_t comm) {
      return grouped([&](auto&& issue) {
        for (const Part& part : sends)
          issue(ncclSend(part.data, size(part.bytes), ncclUint8, part.peer, comm, cuda(stream)));
        for (const Part& part : receives)
          issue(ncclRecv(part.data, size(part.bytes), ncclUint8, part.peer, comm, cuda(stream)));
      });
    });
    for (const Part& part : sends) bytes_sent_ += part.bytes;
  }

  // ---- Memory ----

  void* allocate(std::int64_t bytes) override {
    use_device();
    void* base = nullptr;
    const ncclResult_t status = ncclMemAlloc(&base, size(std::max<std::int64_t>(bytes, 1)));
    if (status != ncclSuccess)
      throw IoError("rank " + std::to_string(rank_) + ": NCCL cannot allocate " + std::to_string(bytes) +
                    " bytes of the device: " + ncclGetErrorString(status));
    allocated_.push_back(base);
    return base;
  }

  void release(void* base) override {
    use_device();
    std::erase(allocated_, base);
    ncclMemFree(base);
  }

  // On the world's communicator and on every group's, in the order of splits, which all ranks share.
  void register_memory(void* base, std::int64_t bytes, std::int64_t layout) override {
    const bool mapped = std::find(allocated_.begin(), allocated_.end(), base) != allocated_.end();
    const std::vector<std::int64_t> sizes =
        control().each(mapped ? bytes : -1 - rank_);  // who cannot have windows has a size of its own
    const std::vector<std::int64_t> layouts = control().each(layout);
    std::vector<NcclRegistration::Target> targets{{current(world_), false}};
    for (int number = 0; number < num_splits_; ++number) {
      const auto found = groups_.find(number);
      NcclRegistration::Target& target = targets.emplace_back();
      if (found == groups_.end()) continue;
      const std::vector<int>& members = found->second->members;
      target = {current(found->second->comm), std::all_of(members.begin(), members.end(), [&](int member) {
                  return sizes[size(member)] == bytes && layouts[size(member)] == layout;
                })};
    }
    registration_.add(base, bytes, targets);
  }

  void unregister_memory(void* base) override { registration_.remove(base); }

  // ---- The state of things ----

  void check() override {
    calls_.channel().check();
    std::unique_lock lock(calls_.mutex());
    std::vector<std::pair<ncclComm_t, const char*>> all{{world_, "the world"}};
    for (const auto& [number, group] : groups_) all.emplace_back(group->comm, group->name.c_str());
    for (const auto& [comm, name] : all) {
      if (comm == nullptr) continue;
      ncclResult_t state = ncclSuccess;
      if (ncclCommGetAsyncError(comm, &state) == ncclSuccess && (state == ncclSuccess || state == ncclInProgress))
        continue;
      const std::string what = std::string("NCCL, in ") + name + ": " + NcclCalls::text_of(state, comm);
      lock.unlock();
      calls_.fail(what);
    }
  }

 private:
  friend struct NcclGroup;

  static NcclGroup& of(StreamGroup& group) { return static_cast<NcclGroup&>(group); }

  void use_device() const { check_cuda(cudaSetDevice(device_ordinal_), "cudaSetDevice"); }
  void count_sent(std::int64_t bytes, std::int64_t n) { bytes_sent_ += bytes * (n - 1) / n; }

  // ---- Communicators ----

  ncclConfig_t configuration(const char* name) const {
    int units = 0;
    check_cuda(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device_ordinal_),
               "cudaDeviceGetAttribute");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = std::clamp(units / kShareOfUnits, 1, kMaxChannels);
    config.splitShare = 0;
    config.commName = name;  // kept by NCCL as it is: a literal
    return config;
  }

  void initialize(const NcclPlace& place) {
    ncclUniqueId id;
    CHECK(place.id.size() == sizeof id, "an id of NCCL's has 128 bytes");
    std::memcpy(&id, place.id.data(), sizeof id);
    ncclConfig_t config = configuration("the world");
    calls_.make("ncclCommInitRankConfig", world_,
                [&] { return ncclCommInitRankConfig(&world_, world_size_, id, rank_, &config); });
    calls_.settle(world_, "the start of NCCL", nccl_timeout_s());
  }

  // Lets all members reach the end of their last collective and stops NCCL's threads. ncclCommDestroy would go on
  // freeing in a thread that nobody can wait for, beside the end of the process, which frees it all as well; so it is
  // not called.
  void finish(ncclComm_t& comm) {
    ncclResult_t state = ncclSuccess;
    {
      const std::lock_guard lock(calls_.mutex());
      if (comm == nullptr) return;
      state = ncclCommFinalize(comm);
    }
    if (state == ncclInProgress) state = calls_.wait_for(comm, kGoodbye_s);
    const std::lock_guard lock(calls_.mutex());
    if (comm == nullptr) return;
    if (state != ncclSuccess) ncclCommAbort(comm);
    comm = nullptr;
  }

  /// As it is now. An abort may take it away right after; NCCL is called with it only where no abort has begun, which
  /// is asked under the mutex.
  ncclComm_t current(const ncclComm_t& comm) {
    const std::lock_guard lock(calls_.mutex());
    return comm;
  }

  void forget(NcclGroup& group) {
    if (const ncclComm_t comm = current(group.comm); comm != nullptr) registration_.remove_from(comm);
    finish(group.comm);
    const std::lock_guard lock(calls_.mutex());
    std::erase_if(groups_, [&](const auto& entry) { return entry.second == &group; });
  }

  // On a thread of the channel's. The mutex is let go of before the wait: whoever destroys the graphs asks check()
  // first.
  void abort_all() {
    cudaSetDevice(device_ordinal_);
    std::vector<ncclComm_t> all;
    {
      const std::lock_guard lock(calls_.mutex());
      for (const auto& [number, group] : groups_) all.push_back(std::exchange(group->comm, nullptr));
      all.push_back(std::exchange(world_, nullptr));
    }
    ncclGroupStart();
    for (const ncclComm_t comm : all)
      if (comm != nullptr) ncclCommAbort(comm);
    ncclGroupEnd();
  }

  // One group of calls, which end together; the first that fails is what is said.
  template <typename Issue>
  static ncclResult_t grouped(Issue&& issue_all) {
    ncclResult_t first = ncclGroupStart();
    issue_all([&](ncclResult_t result) {
      if (first == ncclSuccess && result != ncclInProgress) first = result;
    });
    const ncclResult_t last = ncclGroupEnd();
    return first == ncclSuccess ? last : first;
  }

  const int exceptions_;
  const int rank_, world_size_;
  // Guarded by the calls' mutex: an abort takes the communicators away.
  ncclComm_t world_ = nullptr;
  std::map<int, NcclGroup*> groups_;  // by the number of the split that made them
  int num_splits_ = 0;
  std::vector<void*> allocated_;
  NcclCalls calls_;
  NcclRegistration registration_{calls_};
};

NcclGroup::~NcclGroup() { owner.forget(*this); }

}  // namespace

bool has_nccl() { return true; }

// 22803 is 2.28.3.
std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string nccl_unique_id() {
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
    throw IoError(std::string("NCCL: ncclGetUniqueId: ") + ncclGetErrorString(result));
  return {id.internal, sizeof id.internal};
}

std::unique_ptr<StreamCommunicator> nccl_communicator(const NcclPlace& place, Connections connections, OnLoss on_loss) {
  return std::make_unique<NcclCommunicator>(place, std::move(connections), std::move(on_loss));
}

}  // namespace trainer
