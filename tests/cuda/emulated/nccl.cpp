// NCCL between the threads of one process, each a rank with a device of its own. A collective is work on a stream that
// is done when every member's stream has come to it; then one of them moves the data of all. What the documentation
// leaves to the caller and the real library answers with a hang or garbage is an error here: members that come to
// different collectives, messages of different sizes, symmetric windows of different sizes or used at different
// offsets, communicators of a device on several streams without NCCL_LAUNCH_ORDER_IMPLICIT=1. With it, work begins on a
// device in the order of issue, whatever its stream, in a graph in the order of capture. Communicators that do not
// block answer ncclInProgress wherever they may. An abort returns when no graph holds work of its communicator any
// more, without a limit, as the real one does; in a group, when that is so for all of the group.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/cuda/emulated/block.h"
#include "tests/cuda/emulated/emulated.h"

namespace emulated = trainer::emulated;

namespace {

enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast, all_to_all };

struct Collective {
  Kind kind = Kind::all_reduce;
  std::size_t count = 0;
  ncclDataType_t dtype = ncclInt8;
  int root = 0;
  const void* send = nullptr;
  void* receive = nullptr;
  std::ptrdiff_t send_offset = -1, receive_offset = -1;  // in a window of the communicator; -1: in none

  bool fits(const Collective& other) const {
    return kind == other.kind && count == other.count && dtype == other.dtype && root == other.root;
  }
  bool in_window() const { return send_offset >= 0 && receive_offset >= 0; }
  bool lies_as(const Collective& other) const {
    return !in_window() || !other.in_window() ||
           (send_offset == other.send_offset && receive_offset == other.receive_offset);
  }
};

struct Meeting {
  std::vector<std::pair<int, Collective>> arrived;
  bool done = false;
  int left = 0;
};

struct Message {
  const void* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<bool> taken = std::make_shared<bool>(false);
};

struct World;

struct Split {
  std::map<int, std::pair<int, int>> asked;  // by rank: color and key
  std::map<int, std::pair<std::shared_ptr<World>, int>> result;
};

struct World {
  explicit World(int of) : size(of) {}
  std::mutex mutex;
  const int size;
  int joined = 0;
  std::map<std::uint64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<Message>> mail;  // by sender and receiver
  std::map<std::uint64_t, Split> splits;
  std::map<std::uint64_t, std::size_t> windows;  // bytes of each in turn
};

}  // namespace

struct ncclComm {
  std::mutex making;  // guards world, rank and parent until it is ready: another thread may abort it meanwhile
  std::shared_ptr<World> world;
  int rank = -1;
  bool blocking = true;
  std::atomic<bool> aborted = false;
  std::atomic<bool> failed = false;  // what was accepted did not come to an end: of no use any more
  std::atomic<int> captured = 0;     // works of it that graphs hold
  std::uint64_t next = 0, splits = 0;
  std::shared_ptr<World> parent;  // whose split is under way
  std::uint64_t split = 0;
  int parent_rank = -1;
  std::map<const std::byte*, std::size_t> windows;  // bytes by base
  std::uint64_t windows_made = 0;
};

namespace {

std::mutex registry_mutex;
std::map<std::string, std::shared_ptr<World>> registry;
std::vector<std::unique_ptr<ncclComm>> communicators;  // kept to the end: work that is captured may still point to them

ncclComm* new_communicator() {
  const std::lock_guard lock(registry_mutex);
  return communicators.emplace_back(std::make_unique<ncclComm>()).get();
}
thread_local int group_depth = 0;
thread_local std::vector<ncclComm*> group_aborts;

bool is(const char* variable, std::string_view value) {
  const char* const set = std::getenv(variable);
  return set != nullptr && set == value;
}

// What a graph holds of a communicator, as long as a copy of the captured work exists. Null outside of a capture.
std::shared_ptr<void> hold(ncclComm* comm, cudaStream_t stream) {
  if (emulated::capture_of(stream) == nullptr) return nullptr;
  ++comm->captured;
  return {comm, [](void* held) { --static_cast<ncclComm*>(held)->captured; }};
}

// The place of a piece of work in the order of issue: it begins for the n-th time after the one before it has.
class Launch {
 public:
  explicit Launch(std::shared_ptr<Launch> before) : before_(std::move(before)) {}
  bool may_begin() const { return !before_ || before_->begun_ > begun_; }
  void begin(bool again) {
    ++begun_;
    if (!again) before_ = nullptr;
  }

 private:
  std::atomic<std::uint64_t> begun_ = 0;
  std::shared_ptr<Launch> before_;
};

// Of a rank's thread, and so of its device.
struct Launches {
  std::shared_ptr<Launch> live, captured;
  std::weak_ptr<const void> capture;
  const ncclComm* comm = nullptr;  // of the last
  cudaStream_t stream = nullptr;
};
thread_local Launches launches;

std::shared_ptr<Launch> next_launch(const ncclComm* comm, cudaStream_t stream) {
  Launches& own = launches;
  if (own.comm != nullptr && own.comm != comm && own.stream != stream && !is("NCCL_LAUNCH_ORDER_IMPLICIT", "1"))
    throw emulated::Misuse("two communicators of a device on two streams, and nothing gives their work an order");
  own.comm = comm, own.stream = stream;
  const std::shared_ptr<const void> capture = emulated::capture_of(stream);
  if (capture == nullptr) return own.live = std::make_shared<Launch>(own.live);
  const bool first = own.capture.lock() != capture;
  own.capture = capture;
  return own.captured = std::make_shared<Launch>(first ? nullptr : own.captured);
}

// As the real library does, without a limit.
void wait_for_graphs(const ncclComm& comm) {
  while (comm.captured > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

struct Part {
  bool sends = false;
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};
struct Pending {
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Part> parts;
};
thread_local std::vector<Pending> group_parts;

std::size_t size_of(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      throw emulated::Misuse("a dtype of NCCL's that nothing here uses");
  }
}

template <typename T>
void add(std::byte* to, const std::byte* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, to + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      a = __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
    else if constexpr (std::is_same_v<T, __half>)
      a = __float2half_rn(__half2float(a) + __half2float(b));
    else
      a = static_cast<T>(a + b);
    std::memcpy(to + i * sizeof(T), &a, sizeof(T));
  }
}

void add(ncclDataType_t dtype, std::byte* to, const std::byte* from, std::size_t count) {
  switch (dtype) {
    case ncclFloat32:
      return add<float>(to, from, count);
    case ncclFloat64:
      return add<double>(to, from, count);
    case ncclBfloat16:
      return add<__nv_bfloat16>(to, from, count);
    case ncclFloat16:
      return add<__half>(to, from, count);
    case ncclInt32:
      return add<std::int32_t>(to, from, count);
    case ncclInt64:
      return add<std::int64_t>(to, from, count);
    case ncclUint8:
      return add<std::uint8_t>(to, from, count);
    default:
      throw emulated::Misuse("NCCL cannot sum this dtype here");
  }
}

// Moves everyone's data: what is read is taken first, so that any of them may lie in place.
void perform(int size, std::vector<std::pair<int, Collective>>& all) {
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const Collective& one = all.front().second;
  const std::size_t element = size_of(one.dtype), members = static_cast<std::size_t>(size), piece = one.count * element;
  const bool whole = one.kind == Kind::reduce_scatter || one.kind == Kind::all_to_all;
  std::vector<std::vector<std::byte>> given;
  for (const auto& [rank, collective] : all) {
    const auto* from = static_cast<const std::byte*>(collective.send);
    const bool reads = one.kind != Kind::broadcast || rank == one.root;
    given.emplace_back(from, from + (reads ? piece * (whole ? members : 1) : 0));
  }
  std::vector<std::byte> sum;
  if (one.kind == Kind::all_reduce || one.kind == Kind::reduce_scatter) {
    sum = given[0];
    for (std::size_t i = 1; i < members; ++i) add(one.dtype, sum.data(), given[i].data(), sum.size() / element);
  }
  for (std::size_t i = 0; i < members; ++i) {
    auto* to = static_cast<std::byte*>(all[i].second.receive);
    switch (one.kind) {
      case Kind::all_reduce:
        std::memcpy(to, sum.data(), piece);
        break;
      case Kind::reduce_scatter:
        std::memcpy(to, sum.data() + i * piece, piece);
        break;
      case Kind::broadcast:
        std::memcpy(to, given[static_cast<std::size_t>(one.root)].data(), piece);
        break;
      case Kind::all_gather:
        for (std::size_t j = 0; j < members; ++j) std::memcpy(to + j * piece, given[j].data(), piece);
        break;
      case Kind::all_to_all:
        for (std::size_t j = 0; j < members; ++j) std::memcpy(to + j * piece, given[j].data() + i * piece, piece);
        break;
    }
  }
}

ncclResult_t answer(const ncclComm& comm) { return comm.blocking ? ncclSuccess : ncclInProgress; }

// Of `at` in a window of `comm`.
std::ptrdiff_t window_offset(const ncclComm& comm, const void* at) {
  const auto* const byte = static_cast<const std::byte*>(at);
  for (const auto& [base, bytes] : comm.windows)
    if (byte >= base && byte < base + bytes) return byte - base;
  return -1;
}

// Where the operands lie in windows of `comm`. In place a rank's own piece is part of the whole, and lies where the
// rank says: the whole has to lie alike.
void place(const ncclComm& comm, Collective& one) {
  one.send_offset = window_offset(comm, one.send);
  one.receive_offset = window_offset(comm, one.receive);
  const std::size_t before = static_cast<std::size_t>(comm.rank) * one.count * size_of(one.dtype);
  const auto* const send = static_cast<const std::byte*>(one.send);
  const auto* const receive = static_cast<const std::byte*>(one.receive);
  if (one.kind == Kind::all_gather && send == receive + before) one.send_offset = one.receive_offset;
  if (one.kind == Kind::reduce_scatter && receive == send + before) one.receive_offset = one.send_offset;
}

ncclResult_t put(ncclComm* comm, Collective collective, cudaStream_t stream) {
  if (comm->world == nullptr) throw emulated::Misuse("a collective on a communicator that is not ready");
  if (comm->aborted || comm->failed) return ncclInvalidUsage;
  place(*comm, collective);
  struct Turn {
    bool arrived = false;
    std::uint64_t number = 0;
  };
  const auto turn = std::make_shared<Turn>();
  const std::shared_ptr<World> world = comm->world;
  const auto work = [comm, world, collective, turn, held = hold(comm, stream), launch = next_launch(comm, stream)] {
    const std::lock_guard lock(world->mutex);
    if (comm->aborted) return launch->begin(held != nullptr), true;
    if (!turn->arrived) {
      if (!launch->may_begin()) return false;
      launch->begin(held != nullptr);
      turn->arrived = true;
      turn->number = comm->next++;
      Meeting& meeting = world->meetings[turn->number];
      if (!meeting.arrived.empty() && !collective.fits(meeting.arrived.front().second))
        throw emulated::Misuse("rank " + std::to_string(comm->rank) + " of a communicator of " +
                               std::to_string(world->size) + " comes to another collective than rank " +
                               std::to_string(meeting.arrived.front().first));
      if (!meeting.arrived.empty() && !collective.lies_as(meeting.arrived.front().second))
        throw emulated::Misuse("rank " + std::to_string(comm->rank) +
                               " has the operands of a collective at other offsets of symmetric windows than rank " +
                               std::to_string(meeting.arrived.front().first));
      meeting.arrived.emplace_back(comm->rank, collective);
      if (static_cast<int>(meeting.arrived.size()) == world->size) {
        perform(world->size, meeting.arrived);
        meeting.done = true;
      }
    }
    const auto found = world->meetings.find(turn->number);
    if (!found->second.done) return false;
    if (++found->second.left == world->size) world->meetings.erase(found);
    turn->arrived = false;  // a captured one comes again
    return true;
  };
  if (emulated::enqueue(stream, work, "a collective") != cudaSuccess) return ncclUnhandledCudaError;
  return group_depth > 0 ? ncclSuccess : answer(*comm);
}

// Sends and receives of a group on one stream are one kernel: none waits for another.
void put(const Pending& pending) {
  struct Turn {
    bool posted = false;
    std::vector<bool> received;
    std::vector<std::shared_ptr<bool>> taken;
  };
  const auto turn = std::make_shared<Turn>();
  ncclComm* const comm = pending.comm;
  const std::shared_ptr<World> world = comm->world;
  const auto work = [comm, world, parts = pending.parts, turn, held = hold(comm, pending.stream),
                     launch = next_launch(comm, pending.stream)] {
    const std::lock_guard lock(world->mutex);
    if (comm->aborted) return launch->begin(held != nullptr), true;
    if (!turn->posted) {
      if (!launch->may_begin()) return false;
      launch->begin(held != nullptr);
      turn->posted = true;
      turn->received.assign(parts.size(), false);
      turn->taken.clear();
      for (const Part& part : parts)
        if (part.sends) {
          Message message{part.data, part.bytes};
          turn->taken.push_back(message.taken);
          world->mail[{comm->rank, part.peer}].push_back(message);
        }
    }
    bool all = true;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      if (part.sends || turn->received[i]) continue;
      std::deque<Message>& box = world->mail[{part.peer, comm->rank}];
      const bool later =
          std::any_of(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i), [&](const Part& before) {
            return !before.sends && before.peer == part.peer &&
                   !turn->received[static_cast<std::size_t>(&before - parts.data())];
          });
      if (later || box.empty()) {
        all = false;
        continue;
      }
      if (box.front().bytes != part.bytes)
        throw emulated::Misuse("a message of " + std::to_string(box.front().bytes) + " bytes is received as one of " +
                               std::to_string(part.bytes));
      std::memmove(part.data, box.front().data, part.bytes);
      *box.front().taken = true;
      box.pop_front();
      turn->received[i] = true;
    }
    if (!all) return false;
    for (const std::shared_ptr<bool>& taken : turn->taken)
      if (!*taken) return false;
    turn->posted = false;
    return true;
  };
  emulated::enqueue(pending.stream, work, "an exchange");
}

ncclResult_t put_part(ncclComm* comm, cudaStream_t stream, const Part& part) {
  if (comm->world == nullptr) throw emulated::Misuse("a message on a communicator that is not ready");
  if (comm->aborted || comm->failed) return ncclInvalidUsage;
  if (part.peer < 0 || part.peer >= comm->world->size) return ncclInvalidArgument;
  for (Pending& pending : group_parts)
    if (pending.comm == comm && pending.stream == stream) {
      pending.parts.push_back(part);
      return ncclSuccess;
    }
  group_parts.push_back({comm, stream, {part}});
  return group_depth > 0 ? ncclSuccess : (ncclGroupStart(), ncclGroupEnd());
}

// Whether a communicator that was asked for is there; makes it, if its split has become whole.
bool ready(ncclComm& comm) {
  const std::lock_guard making(comm.making);
  if (comm.parent) {
    const std::lock_guard lock(comm.parent->mutex);
    Split& split = comm.parent->splits[comm.split];
    if (static_cast<int>(split.asked.size()) < comm.parent->size) return false;
    if (split.result.empty()) {
      std::map<int, std::vector<std::pair<int, int>>> members;  // by color: key and rank
      for (const auto& [rank, asked] : split.asked)
        if (asked.first >= 0) members[asked.first].emplace_back(asked.second, rank);
      for (auto& [color, ranks] : members) {
        std::sort(ranks.begin(), ranks.end());
        const auto world = std::make_shared<World>(static_cast<int>(ranks.size()));
        world->joined = world->size;
        for (std::size_t i = 0; i < ranks.size(); ++i) split.result[ranks[i].second] = {world, static_cast<int>(i)};
      }
    }
    std::tie(comm.world, comm.rank) = split.result.at(comm.parent_rank);
    comm.parent = nullptr;
    return true;
  }
  if (!comm.world) return false;
  const std::lock_guard lock(comm.world->mutex);
  return comm.world->joined == comm.world->size;
}

ncclResult_t wait_if_blocking(ncclComm& comm) {
  if (!comm.blocking) return ncclInProgress;
  while (!ready(comm)) std::this_thread::yield();
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  static thread_local std::string text;
  text = "emulated result " + std::to_string(result);
  return text.c_str();
}
const char* ncclGetLastError(ncclComm_t) { return "none is kept by the emulation"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::uint64_t next = 0;
  const std::lock_guard lock(registry_mutex);
  std::memset(id, 0, sizeof *id);
  const std::string text = "emulated " + std::to_string(++next);
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (rank < 0 || rank >= size) return ncclInvalidArgument;
  const std::string key(id.internal, sizeof id.internal);
  *comm = new_communicator();
  (*comm)->blocking = config == nullptr || config->blocking != 0;
  (*comm)->rank = rank;
  {
    const std::lock_guard lock(registry_mutex);
    std::shared_ptr<World>& world = registry[key];
    if (!world) world = std::make_shared<World>(size);
    if (world->size != size) throw emulated::Misuse("ranks of one id say different sizes of the world");
    (*comm)->world = world;
    const std::lock_guard inner(world->mutex);
    ++world->joined;
  }
  return wait_if_blocking(**comm);
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  if (!ready(*comm)) throw emulated::Misuse("a split of a communicator that is not ready");
  const std::uint64_t number = comm->splits++;
  {
    const std::lock_guard lock(comm->world->mutex);
    comm->world->splits[number].asked[comm->rank] = {color, key};
  }
  *made = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) return answer(*comm);
  *made = new_communicator();
  (*made)->blocking =
      config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT ? comm->blocking : config->blocking != 0;
  (*made)->parent = comm->world;
  (*made)->parent_rank = comm->rank;
  (*made)->split = number;
  return wait_if_blocking(**made);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->failed ? ncclSystemError : ready(*comm) ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->world->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return answer(*comm); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  comm->aborted = true;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  {
    const std::lock_guard making(comm->making);
    comm->aborted = true;
    if (comm->world) const std::lock_guard lock(comm->world->mutex);  // whoever moves data has ended
  }
  if (group_depth > 0)
    group_aborts.push_back(comm);
  else
    wait_for_graphs(*comm);
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** at, std::size_t bytes) {
  return cudaMalloc(at, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* at) { return cudaFree(at) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }
ncclResult_t ncclCommRegister(const ncclComm_t, void* data, std::size_t, void** handle) {
  *handle = data;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, std::size_t bytes, ncclWindow_t* window, int) {
  *window = nullptr;
  if (is("NCCL_WIN_ENABLE", "0")) return ncclSuccess;
  if (emulated::settings().windows_fail) {
    comm->failed = true;
    return answer(*comm);
  }
  {
    const std::lock_guard lock(comm->world->mutex);
    const auto [first, is_first] = comm->world->windows.emplace(comm->windows_made++, bytes);
    if (!is_first && first->second != bytes)
      throw emulated::Misuse("a symmetric window of " + std::to_string(bytes) + " bytes on a rank, and of " +
                             std::to_string(first->second) + " on another");
  }
  comm->windows[static_cast<const std::byte*>(data)] = bytes;
  *window = reinterpret_cast<ncclWindow_t>(data);
  return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  comm->windows.erase(reinterpret_cast<const std::byte*>(window));
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  for (const Pending& pending : std::exchange(group_parts, {})) {
    put(pending);
    if (!pending.comm->blocking) result = ncclInProgress;
  }
  for (const ncclComm* comm : std::exchange(group_aborts, {})) wait_for_graphs(*comm);
  return result;
}
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return put_part(comm, stream, {true, peer, const_cast<void*>(data), count * size_of(dtype)});
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return put_part(comm, stream, {false, peer, data, count * size_of(dtype)});
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclRedOp_t,
                           ncclComm_t comm, cudaStream_t stream) {
  return put(comm, {Kind::all_reduce, count, dtype, 0, send, receive}, stream);
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
  return put(comm, {Kind::reduce_scatter, count, dtype, 0, send, receive}, stream);
}
ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclComm_t comm,
                           cudaStream_t stream) {
  return put(comm, {Kind::all_gather, count, dtype, 0, send, receive}, stream);
}
ncclResult_t ncclAlltoAll(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclComm_t comm,
                          cudaStream_t stream) {
  return put(comm, {Kind::all_to_all, count, dtype, 0, send, receive}, stream);
}
ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return put(comm, {Kind::broadcast, count, dtype, root, send, receive}, stream);
}

}  // extern "C"
