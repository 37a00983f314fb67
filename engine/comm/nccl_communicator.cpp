// Ranks as GPUs, by NCCL. Communicators do not block: whatever NCCL does with other ranks (init, split, connecting at a
// first collective) goes on beside this thread, which polls, and so ends where another rank is lost or, for inits and
// splits, too much time is gone.
//
// Several communicators of a rank work at once, on streams of their own. Two conditions keep them from waiting on each
// other. Their kernels must all be resident at once, since a kernel of NCCL holds its multiprocessors until the other
// ranks have come: so each takes at most an eighth of them (config.maxCTAs), and the three that a plan runs beside each
// other leave most to computation, which ends by itself. And where the device runs them one after another after all
// (streams share hardware queues), it does so in the order of issue, which engine/plan/verify/communication.h proves to
// be free of deadlock. NCCL_LAUNCH_ORDER_IMPLICIT=1 makes NCCL keep that order always; it is left to whoever starts the
// job, because it makes a collective wait for data that an earlier one on another stream waits for. Children share
// nothing of their parents (config.splitShare=0): what shares resources is run one after another. (NCCL's user guide:
// "Using multiple NCCL communicators concurrently", "Creating a communicator with options".)
//
// Calls into NCCL are made under one mutex and return at once. So an abort, on the heartbeat's thread, finds no one
// inside a communicator that it ends; ncclCommAbort makes the kernels in flight return, those of replayed graphs as
// well, and the streams run empty.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/comm/patience.h"
#include "engine/comm/rank_watch.h"
#include "engine/comm/stream_communicator.h"
#include "engine/comm/sums.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/launch/launcher.h"
#include "engine/launch/rendezvous.h"

namespace trainer {
namespace {

constexpr std::int64_t kStaged = std::int64_t{2}
                                 << 20;  // bytes of host memory that go through the device at a time, each way
constexpr double kGoodbye_s = 10;        // for communicators to end in, once all ranks are done
constexpr int kShareOfUnits = 8;         // of the multiprocessors, each communicator takes one in so many
constexpr int kMostChannels = 32;        // more bring NCCL nothing inside a node

double timeout_s() { return timeout_of_rendezvous(process_environment()); }

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
std::size_t size(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }

// Host memory on its way: what goes and what comes, pinned and on the device.
class Staging {
 public:
  Staging() {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    for (void** device : {&device_out, &device_in}) check_cuda(cudaMalloc(device, size(kStaged)), "cudaMalloc");
    for (void** host : {&host_out, &host_in}) check_cuda(cudaMallocHost(host, size(kStaged)), "cudaMallocHost");
  }
  // What was cut short by an abort still runs to its end.
  ~Staging() {
    cudaStreamSynchronize(stream);
    for (void* host : {host_out, host_in}) cudaFreeHost(host);
    for (void* device : {device_out, device_in}) cudaFree(device);
    cudaStreamDestroy(stream);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  cudaStream_t stream = nullptr;
  void *host_out = nullptr, *host_in = nullptr, *device_out = nullptr, *device_in = nullptr;
};

class NcclCommunicator;

struct HostGroup final : Communicator::Group {
  HostGroup(std::vector<int> ranks, std::int64_t i, int world)
      : members(std::move(ranks)), index(i), whole(static_cast<int>(members.size()) == world) {}
  std::int64_t size() const { return static_cast<std::int64_t>(members.size()); }
  std::vector<int> members;
  std::int64_t index;
  bool whole;  // all ranks of the world
};

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

struct Registration {
  ncclComm_t comm = nullptr;
  void* handle = nullptr;
  ncclWindow_t window = nullptr;
};

class NcclCommunicator final : public StreamCommunicator {
 public:
  NcclCommunicator(const NcclPlace& place, OnLoss on_loss)
      : exceptions_(std::uncaught_exceptions()),
        rank_(place.rank),
        world_size_(place.world_size),
        watch_(
            std::move(on_loss), [this] { return doing(); }, [this] { abort_all(); }) {
    device_ordinal_ = place.device_ordinal;
    use_device();
    staging_ = std::make_unique<Staging>();
    initialize(place);
    watch_.begin(rank_, world_size_, [this](void* data, std::int64_t bytes) { broadcast_whole(data, bytes); });
  }

  ~NcclCommunicator() override {
    // A rank that leaves by an exception no longer meets the others.
    if (std::uncaught_exceptions() > exceptions_) abort("rank " + std::to_string(rank_) + " failed");
    while (!registrations_.empty()) unregister_memory(registrations_.begin()->first);
    finish(world_);
    watch_.end();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  // ---- Collectives on streams ----

  // Everyone learns everyone's color and key: so members are known, and ranks that split in another order show at once.
  std::unique_ptr<StreamGroup> split(int color, int key) override {
    const std::array<std::int32_t, 3> mine{static_cast<std::int32_t>(num_splits_), color, key};
    std::vector<std::array<std::int32_t, 3>> all(size(world_size_));
    gather_whole(mine.data(), all.data(), sizeof mine, "a split of the world");
    std::vector<std::pair<int, int>> members;  // key, rank
    for (int other = 0; other < world_size_; ++other) {
      const auto& [its_number, its_color, its_key] = all[size(other)];
      CHECK(its_number == num_splits_, "ranks split in one order");
      if (color >= 0 && its_color == color) members.emplace_back(its_key, other);
    }
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
    under_lock("ncclCommSplit", [&] {
      if (color >= 0) groups_[number] = group.get();  // from now on an abort ends it as well
      return ncclCommSplit(world_, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &group->comm, &config);
    });
    settle(world_, group->name.c_str(), timeout_s());
    if (color < 0) return nullptr;
    settle(group->comm, group->name.c_str(), timeout_s());
    return group;
  }

  void all_reduce(StreamGroup& group, DType dtype, void* data, std::int64_t elements, void* stream) override {
    NcclGroup& own = of(group);
    enqueue(own.comm, "ncclAllReduce", [&](ncclComm_t comm) {
      return ncclAllReduce(data, data, size(elements), type_of(dtype), ncclSum, comm, cuda(stream));
    });
    count_sent(2 * elements * size_of(dtype), own.size());
  }

  void reduce_scatter(StreamGroup& group, DType dtype, const void* input, void* output, std::int64_t elements,
                      void* stream) override {
    NcclGroup& own = of(group);
    CHECK(elements % own.size() == 0, "the elements of a reduce_scatter divide by its members");
    enqueue(own.comm, "ncclReduceScatter", [&](ncclComm_t comm) {
      return ncclReduceScatter(input, output, size(elements / own.size()), type_of(dtype), ncclSum, comm, cuda(stream));
    });
    count_sent(elements * size_of(dtype), own.size());
  }

  void all_gather(StreamGroup& group, const void* input, void* output, std::int64_t bytes, void* stream) override {
    NcclGroup& own = of(group);
    enqueue(own.comm, "ncclAllGather",
            [&](ncclComm_t comm) { return ncclAllGather(input, output, size(bytes), ncclUint8, comm, cuda(stream)); });
    count_sent(bytes * own.size(), own.size());
  }

  void all_to_all(StreamGroup& group, const void* input, void* output, std::int64_t bytes, void* stream) override {
    NcclGroup& own = of(group);
    enqueue(own.comm, "an all_to_all", [&](ncclComm_t comm) {
      return grouped([&](auto&& issue) {
        for (int peer = 0; peer < own.size(); ++peer) {
          issue(ncclSend(at(input, peer * bytes), size(bytes), ncclUint8, peer, comm, cuda(stream)));
          issue(ncclRecv(at(output, peer * bytes), size(bytes), ncclUint8, peer, comm, cuda(stream)));
        }
      });
    });
    count_sent(bytes * own.size(), own.size());
  }

  void broadcast(StreamGroup& group, void* data, std::int64_t bytes, void* stream) override {
    NcclGroup& own = of(group);
    enqueue(own.comm, "ncclBroadcast",
            [&](ncclComm_t comm) { return ncclBroadcast(data, data, size(bytes), ncclUint8, 0, comm, cuda(stream)); });
    if (own.place + 1 < own.size()) bytes_sent_ += bytes;  // a pipelined ring: all but the last pass it on
  }

  void exchange(std::span<const Part> sends, std::span<const Part> receives, void* stream) override {
    if (sends.empty() && receives.empty()) return;
    enqueue(world_, "an exchange", [&](ncclComm_t comm) {
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

  // If some members of a communicator use registered memory and others do not, NCCL does what nobody defined: so after
  // each step all tell each other how it went, and what failed on one is undone on all. Communicators are taken in the
  // order of splits, which all ranks share; who is in none of a split votes with the others.
  void register_memory(void* base, std::int64_t bytes) override {
    CHECK(!registrations_.contains(base), "memory is registered once");
    std::vector<Registration>& made = registrations_[base];
    const bool mapped = std::find(allocated_.begin(), allocated_.end(), base) != allocated_.end();
    const std::vector<std::int64_t> sizes =
        tell_all(mapped ? bytes : -1 - rank_);  // who cannot have windows has a size of its own
    register_with(world_, false, base, bytes, made);
    for (int number = 0; number < num_splits_; ++number) {
      const auto found = groups_.find(number);
      const NcclGroup* group = found == groups_.end() ? nullptr : found->second;
      const bool alike = group != nullptr && std::all_of(group->members.begin(), group->members.end(),
                                                         [&](int member) { return sizes[size(member)] == bytes; });
      register_with(group == nullptr ? nullptr : group->comm, alike, base, bytes, made);
    }
  }

  void unregister_memory(void* base) override {
    const auto found = registrations_.find(base);
    CHECK(found != registrations_.end(), "only what is registered can be unregistered");
    for (const Registration& one : found->second) undo(one);
    registrations_.erase(found);
  }

  // ---- The state of things ----

  void check() override {
    watch_.check();
    std::unique_lock lock(mutex_);
    std::vector<std::pair<ncclComm_t, const char*>> all{{world_, "the world"}};
    for (const auto& [number, group] : groups_) all.emplace_back(group->comm, group->name.c_str());
    for (const auto& [comm, name] : all) {
      if (comm == nullptr) continue;
      ncclResult_t state = ncclSuccess;
      if (ncclCommGetAsyncError(comm, &state) == ncclSuccess && (state == ncclSuccess || state == ncclInProgress))
        continue;
      const std::string what = std::string("NCCL, in ") + name + ": " + text_of(state, comm);
      lock.unlock();
      fail(what);
    }
  }

  void abort(const std::string& reason) override { watch_.abort(reason); }

  // ---- Collectives on host memory: piece by piece over the device ----

  std::unique_ptr<Group> group(const std::vector<int>& members) override {
    const auto mine = std::find(members.begin(), members.end(), rank_);
    CHECK(mine != members.end(), "a rank belongs to the groups it asks for");
    return std::make_unique<HostGroup>(members, mine - members.begin(), world_size_);
  }

  // Everyone gets everyone's piece and sums: in rank order, as every communicator on host memory does.
  void all_reduce(Group& group, DType dtype, void* data, std::int64_t elements) override {
    const HostGroup& own = of(group);
    const std::int64_t bytes = size_of(dtype), piece = std::max<std::int64_t>(1, kStaged / (own.size() * bytes));
    for (std::int64_t done = 0; done < elements; done += piece) {
      const std::int64_t count = std::min(piece, elements - done);
      void* const target = at(data, done * bytes);
      gather_and_sum(own, dtype, target, target, count);
    }
    count_sent(2 * elements * bytes, own.size());
  }

  void reduce_scatter(Group& group, DType dtype, const void* input, void* output, std::int64_t elements) override {
    const HostGroup& own = of(group);
    const std::int64_t bytes = size_of(dtype), piece = std::max<std::int64_t>(1, kStaged / (own.size() * bytes));
    std::vector<std::byte> others(size(piece * bytes));
    for (std::int64_t member = 0; member < own.size(); ++member) {
      const auto [first, last] = slice_of(elements, member, own.size());
      for (std::int64_t begin = first; begin < last; begin += piece) {
        void* const target = member == own.index ? at(output, (begin - first) * bytes) : others.data();
        gather_and_sum(own, dtype, at(input, begin * bytes), target, std::min(piece, last - begin));
      }
    }
    count_sent(elements * bytes, own.size());
  }

  void all_gather(Group& group, const void* input, void* output, std::int64_t bytes) override {
    gather(of(group), input, output, bytes);
    count_sent(bytes * of(group).size(), of(group).size());
  }

  void all_to_all(Group& group, const void* input, void* output, std::int64_t bytes) override {
    const HostGroup& own = of(group);
    std::vector<Part> sends, receives;
    for (std::int64_t member = 0; member < own.size(); ++member) {
      sends.push_back({own.members[size(member)], const_cast<std::byte*>(at(input, member * bytes)), bytes});
      receives.push_back({own.members[size(member)], at(output, member * bytes), bytes});
    }
    swap(sends, receives, "all_to_all");
    count_sent(bytes * own.size(), own.size());
  }

  void broadcast(Group& group, void* data, std::int64_t bytes) override {
    const HostGroup& own = of(group);
    if (own.whole) {
      broadcast_whole(data, bytes);
    } else {
      std::vector<Part> parts;
      for (std::int64_t member = own.index == 0 ? 1 : 0; member < (own.index == 0 ? own.size() : 1); ++member)
        parts.push_back({own.members[size(member)], data, bytes});
      own.index == 0 ? swap(parts, {}, "broadcast") : swap({}, parts, "broadcast");
    }
    if (own.index + 1 < own.size()) bytes_sent_ += bytes;
  }

  void exchange(std::span<const Part> sends, std::span<const Part> receives) override {
    swap(sends, receives, "exchange");
    for (const Part& part : sends) bytes_sent_ += part.bytes;
  }

  void barrier() override {
    std::vector<std::byte> all(size(world_size_));
    const std::byte mine{};
    gather_whole(&mine, all.data(), 1, "barrier");
  }

 private:
  friend struct NcclGroup;

  static NcclGroup& of(StreamGroup& group) { return static_cast<NcclGroup&>(group); }
  static const HostGroup& of(Group& group) { return static_cast<const HostGroup&>(group); }

  void use_device() const { check_cuda(cudaSetDevice(device_ordinal_), "cudaSetDevice"); }
  void count_sent(std::int64_t bytes, std::int64_t n) { bytes_sent_ += bytes * (n - 1) / n; }

  // ---- Communicators ----

  ncclConfig_t configuration(const char* name) const {
    int units = 0;
    check_cuda(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device_ordinal_),
               "cudaDeviceGetAttribute");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = std::clamp(units / kShareOfUnits, 1, kMostChannels);
    config.splitShare = 0;
    config.commName = name;  // kept by NCCL as it is: a literal
    return config;
  }

  void initialize(const NcclPlace& place) {
    ncclUniqueId id;
    if (place.id.empty()) {
      checked(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);  // all ranks read the same from NCCL_COMM_ID
    } else {
      CHECK(place.id.size() == sizeof id, "an id of NCCL's has 128 bytes");
      std::memcpy(&id, place.id.data(), sizeof id);
    }
    ncclConfig_t config = configuration("the world");
    under_lock("ncclCommInitRankConfig",
               [&] { return ncclCommInitRankConfig(&world_, world_size_, id, rank_, &config); });
    settle(world_, "the start of NCCL", timeout_s());
  }

  // Lets all members come to their last collective's end and stops NCCL's threads. ncclCommDestroy would go on freeing
  // in a thread that nobody can wait for, beside the end of the process, which frees it all as well; so it is not
  // called.
  void finish(ncclComm_t& comm) {
    ncclResult_t state = ncclSuccess;
    {
      const std::lock_guard lock(mutex_);
      if (comm == nullptr) return;
      state = ncclCommFinalize(comm);
    }
    for (const Patience patience; state == ncclInProgress && patience.seconds() < kGoodbye_s && !watch_.aborted();
         patience.wait()) {
      const std::lock_guard lock(mutex_);
      if (comm == nullptr || ncclCommGetAsyncError(comm, &state) != ncclSuccess) break;
    }
    const std::lock_guard lock(mutex_);
    if (comm == nullptr) return;
    if (state != ncclSuccess) ncclCommAbort(comm);
    comm = nullptr;
  }

  void forget(NcclGroup& group) {
    for (auto& [base, registrations] : registrations_)
      std::erase_if(registrations, [&](const Registration& one) {
        if (one.comm != group.comm) return false;
        undo(one);
        return true;
      });
    finish(group.comm);
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [&](const auto& entry) { return entry.second == &group; });
  }

  // On a thread of the watch's.
  void abort_all() {
    cudaSetDevice(device_ordinal_);
    const std::lock_guard lock(mutex_);
    for (const auto& [number, group] : groups_) ncclCommAbort(std::exchange(group->comm, nullptr));
    ncclCommAbort(std::exchange(world_, nullptr));
  }

  // ---- Calls ----

  static std::string text_of(ncclResult_t result, ncclComm_t comm) {
    const char* const more = comm == nullptr ? nullptr : ncclGetLastError(comm);
    return std::string(ncclGetErrorString(result)) +
           (more != nullptr && *more != '\0' ? std::string(" (") + more + ")" : "");
  }

  // The heartbeat knows whose fault it is, if it was a rank that is gone.
  [[noreturn]] void fail(const std::string& what) {
    watch_.prefer_word_of_heartbeat();
    const std::string message = "rank " + std::to_string(rank_) + ": " + what + "; this rank " + watch_.state();
    watch_.abort(message);
    throw IoError(message);
  }

  void checked(ncclResult_t result, const char* call, ncclComm_t comm) {
    if (result != ncclSuccess && result != ncclInProgress)
      fail(std::string("NCCL: ") + call + ": " + text_of(result, comm));
  }

  template <typename Call>
  void under_lock(const char* name, Call&& call) {
    watch_.check();
    std::unique_lock lock(mutex_);
    const ncclResult_t result = call();
    const std::string why = result == ncclSuccess || result == ncclInProgress ? "" : text_of(result, world_);
    lock.unlock();
    if (!why.empty()) fail(std::string("NCCL: ") + name + ": " + why);
  }

  // Waits until what was asked of `comm` is done, or on its stream. limit_s 0: as long as all ranks live.
  void settle(const ncclComm_t& comm, const char* what, double limit_s) {
    for (const Patience patience;; patience.wait()) {
      watch_.check();
      std::unique_lock lock(mutex_);
      ncclResult_t state = ncclInProgress;  // also of one that an abort has taken away this very moment
      const ncclResult_t asked = comm == nullptr ? ncclSuccess : ncclCommGetAsyncError(comm, &state);
      if (asked == ncclSuccess && state == ncclSuccess) return;
      const std::string why = asked != ncclSuccess      ? text_of(asked, comm)
                              : state == ncclInProgress ? ""
                                                        : text_of(state, comm);
      lock.unlock();
      if (!why.empty()) fail(std::string("NCCL, in ") + what + ": " + why);
      if (limit_s > 0 && patience.seconds() > limit_s)
        fail("NCCL: " + std::string(what) + " is not done after " + std::to_string(static_cast<int>(limit_s)) +
             " s: a rank has not come to it, or the network between the nodes does not carry it (NCCL_DEBUG=INFO tells "
             "more)");
    }
  }

  template <typename Call>
  void enqueue(const ncclComm_t& comm, const char* name, Call&& call) {
    under_lock(name, [&] { return comm == nullptr ? ncclSuccess : call(comm); });
    settle(comm, name, 0);
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

  // ---- Registration ----

  std::vector<std::int64_t> tell_all(std::int64_t mine) {
    std::vector<std::int64_t> all(size(world_size_));
    gather_whole(&mine, all.data(), sizeof mine, "the registration of memory");
    return all;
  }

  // Windows are for memory that ncclMemAlloc mapped, equally much on all members. Memory of cudaMalloc may be
  // registered as a buffer: NCCL takes what is safe of it and leaves what would synchronise
  // (NCCL_LEGACY_CUDA_REGISTER). Null: a communicator of others.
  void register_with(ncclComm_t comm, bool window, void* base, std::int64_t bytes, std::vector<Registration>& made) {
    for (const bool as_window : {true, false}) {
      Registration one{comm, nullptr, nullptr};
      const bool tried = comm != nullptr && (as_window ? window : true);
      if (tried) as_window ? make_window(one, base, bytes) : make_buffer(one, base, bytes);
      const bool failed = tried && one.handle == nullptr && one.window == nullptr;
      const bool all_well = largest(failed ? 1 : 0) == 0;
      if (all_well && tried) {
        made.push_back(one);
        window = false;
        comm = nullptr;  // and so it votes, but does not register again
      } else if (!all_well) {
        undo(one);
      }
    }
  }

  std::int64_t largest(std::int64_t mine) {
    const std::vector<std::int64_t> all = tell_all(mine);
    return *std::max_element(all.begin(), all.end());
  }

  void make_window(Registration& one, void* base, std::int64_t bytes) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    std::unique_lock lock(mutex_);
    const ncclResult_t result =
        ncclCommWindowRegister(one.comm, base, size(bytes), &one.window, NCCL_WIN_COLL_SYMMETRIC);
    lock.unlock();
    // It goes on in the background even where the result is success, and writes the window at its end.
    if (result == ncclSuccess || result == ncclInProgress)
      settle(one.comm, "the registration of memory (NCCL_WIN_ENABLE=0 does without windows)", timeout_s());
    else
      one.window = nullptr;
#else
    static_cast<void>(one), static_cast<void>(base), static_cast<void>(bytes);
#endif
  }

  void make_buffer(Registration& one, void* base, std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (ncclCommRegister(one.comm, base, size(bytes), &one.handle) != ncclSuccess) one.handle = nullptr;
  }

  // Memory may be freed after it: so what goes on in the background is waited for.
  void undo(const Registration& one) {
    std::unique_lock lock(mutex_);
    if (watch_.aborted() || one.comm == nullptr) return;
    if (one.handle != nullptr) ncclCommDeregister(one.comm, one.handle);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    if (one.window == nullptr) return;
    ncclCommWindowDeregister(one.comm, one.window);
    ncclResult_t state = ncclInProgress;
    for (const Patience patience; state == ncclInProgress && patience.seconds() < kGoodbye_s && !watch_.aborted();) {
      lock.unlock();
      patience.wait();
      lock.lock();
      if (watch_.aborted() || ncclCommGetAsyncError(one.comm, &state) != ncclSuccess) return;
    }
#endif
  }

  // ---- Host memory ----

  // `out_bytes` of `out` to the device, `collective` there, `in_bytes` back to `in`; at most kStaged each. Returns when
  // they are there.
  template <typename Collective>
  void staged(const char* name, const void* out, std::int64_t out_bytes, void* in, std::int64_t in_bytes,
              Collective&& collective) {
    use_device();
    watch_.waits_in(name);
    Staging& on = *staging_;
    if (out_bytes > 0) {
      std::memcpy(on.host_out, out, size(out_bytes));
      check_cuda(cudaMemcpyAsync(on.device_out, on.host_out, size(out_bytes), cudaMemcpyHostToDevice, on.stream),
                 "cudaMemcpyAsync");
    }
    enqueue(world_, name, [&](ncclComm_t comm) { return collective(on, comm); });
    if (in_bytes > 0)
      check_cuda(cudaMemcpyAsync(on.host_in, on.device_in, size(in_bytes), cudaMemcpyDeviceToHost, on.stream),
                 "cudaMemcpyAsync");
    for (const Patience patience;; patience.wait()) {
      const cudaError_t state = cudaStreamQuery(on.stream);
      if (state == cudaSuccess) break;
      if (state != cudaErrorNotReady) check_cuda(state, name);
      check();
    }
    watch_.check();  // an abort, too, lets the stream run empty
    if (in_bytes > 0) std::memcpy(in, on.host_in, size(in_bytes));
    watch_.waits_in(nullptr);
  }

  // Of the whole world.
  void gather_whole(const void* input, void* output, std::int64_t bytes, const char* name) {
    const std::int64_t most = kStaged / world_size_;
    CHECK(most > 0, "a byte of every rank fits where host memory is staged");
    std::vector<std::byte> all(size(std::min(most, bytes) * world_size_));
    for (std::int64_t done = 0; done < bytes; done += most) {
      const std::int64_t piece = std::min(most, bytes - done);
      staged(name, at(input, done), piece, all.data(), piece * world_size_, [&](Staging& on, ncclComm_t comm) {
        return ncclAllGather(on.device_out, on.device_in, size(piece), ncclUint8, comm, on.stream);
      });
      for (std::int64_t member = 0; member < world_size_; ++member)
        std::memcpy(at(output, member * bytes + done), all.data() + member * piece, size(piece));
    }
  }

  // Sends and receives by peer, ascending, a piece each way at a time. That order is the same for all (pairs in
  // lexicographic order), and so no ranks wait for each other in a circle, however many parts there are. Parts between
  // two ranks are one run of bytes each way.
  void swap(std::span<const Part> sends, std::span<const Part> receives, const char* name) {
    std::map<int, std::array<std::vector<Part>, 2>> peers;
    for (const Part& part : sends) peers[part.peer][0].push_back(part);
    for (const Part& part : receives) peers[part.peer][1].push_back(part);
    for (const auto& [peer, parts] : peers)
      peer == rank_ ? copy_own(parts[0], parts[1]) : swap_with(peer, parts[0], parts[1], name);
  }

  static void copy_own(std::span<const Part> from, std::span<const Part> to) {
    CHECK(from.size() == to.size(), "what a rank sends to itself it receives");
    for (std::size_t i = 0; i < from.size(); ++i) {
      CHECK(from[i].bytes == to[i].bytes, "a receive has the size of its send");
      std::memmove(to[i].data, from[i].data, size(from[i].bytes));
    }
  }

  void swap_with(int peer, std::span<const Part> sends, std::span<const Part> receives, const char* name) {
    const auto total = [](std::span<const Part> parts) {
      return std::accumulate(parts.begin(), parts.end(), std::int64_t{0},
                             [](std::int64_t sum, const Part& part) { return sum + part.bytes; });
    };
    const std::int64_t out_total = total(sends), in_total = total(receives);
    std::vector<std::byte> out(size(std::min(kStaged, out_total))), in(size(std::min(kStaged, in_total)));
    for (std::int64_t done = 0; done < std::max(out_total, in_total); done += kStaged) {
      const std::int64_t out_bytes = std::clamp<std::int64_t>(out_total - done, 0, kStaged),
                         in_bytes = std::clamp<std::int64_t>(in_total - done, 0, kStaged);
      for_run(sends, done, out_bytes, [&](void* data, std::int64_t offset, std::int64_t bytes) {
        std::memcpy(out.data() + offset, data, size(bytes));
      });
      staged(name, out.data(), out_bytes, in.data(), in_bytes, [&, peer = peer](Staging& on, ncclComm_t comm) {
        return grouped([&](auto&& issue) {
          if (out_bytes > 0) issue(ncclSend(on.device_out, size(out_bytes), ncclUint8, peer, comm, on.stream));
          if (in_bytes > 0) issue(ncclRecv(on.device_in, size(in_bytes), ncclUint8, peer, comm, on.stream));
        });
      });
      for_run(receives, done, in_bytes, [&](void* data, std::int64_t offset, std::int64_t bytes) {
        std::memcpy(data, in.data() + offset, size(bytes));
      });
    }
  }

  // each(data, offset from `first`, bytes) for what parts have of the bytes [first, first + bytes) of them all, one
  // behind the other.
  template <typename Each>
  static void for_run(std::span<const Part> parts, std::int64_t first, std::int64_t bytes, Each&& each) {
    std::int64_t begin = 0;
    for (const Part& part : parts) {
      const std::int64_t from = std::max(begin, first), to = std::min(begin + part.bytes, first + bytes);
      if (from < to) each(at(part.data, from - begin), from - first, to - from);
      begin += part.bytes;
    }
  }

  void gather(const HostGroup& own, const void* input, void* output, std::int64_t bytes) {
    if (own.whole) return gather_whole(input, output, bytes, "all_gather");
    std::vector<Part> sends, receives;
    for (std::int64_t member = 0; member < own.size(); ++member) {
      sends.push_back({own.members[size(member)], const_cast<void*>(input), bytes});
      receives.push_back({own.members[size(member)], at(output, member * bytes), bytes});
    }
    swap(sends, receives, "all_gather");
  }

  void gather_and_sum(const HostGroup& own, DType dtype, const void* input, void* output, std::int64_t elements) {
    const std::int64_t bytes = elements * size_of(dtype);
    std::vector<std::byte> all(size(bytes * own.size()));
    gather(own, input, all.data(), bytes);
    std::vector<const void*> inputs;
    for (std::int64_t member = 0; member < own.size(); ++member) inputs.push_back(all.data() + member * bytes);
    sum_in_rank_order(dtype, inputs, 0, elements, {&output, 1}, 0);
  }

  void broadcast_whole(void* data, std::int64_t bytes) {
    for (std::int64_t done = 0; done < bytes; done += kStaged) {
      const std::int64_t piece = std::min(kStaged, bytes - done);
      staged("broadcast", at(data, done), rank_ == 0 ? piece : 0, at(data, done), rank_ == 0 ? 0 : piece,
             [&](Staging& on, ncclComm_t comm) {
               return ncclBroadcast(on.device_out, on.device_in, size(piece), ncclUint8, 0, comm, on.stream);
             });
    }
  }

  const int exceptions_;
  const int rank_, world_size_;
  std::mutex mutex_;  // calls into NCCL, and what an abort takes away: the communicators
  ncclComm_t world_ = nullptr;
  std::map<int, NcclGroup*> groups_;  // by the number of the split that made them
  int num_splits_ = 0;
  std::unique_ptr<Staging> staging_;
  std::vector<void*> allocated_;
  std::map<void*, std::vector<Registration>> registrations_;
  RankWatch watch_;
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

std::unique_ptr<StreamCommunicator> nccl_communicator(const NcclPlace& place, OnLoss on_loss) {
  return std::make_unique<NcclCommunicator>(place, std::move(on_loss));
}

}  // namespace trainer
