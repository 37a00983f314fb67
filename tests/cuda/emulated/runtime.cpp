// The CUDA runtime in host memory. A stream is a queue of work that nobody does before somebody waits: then one of the
// streams whose first work can be done is taken, in an order that the test chooses, so that an event that is missing
// shows as a wrong result. A captured graph runs its nodes in any order that its edges allow. What a real runtime
// refuses (work on the default stream, waiting or unpinned copies while capturing, a fork that never joins) is refused.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda/emulated/block.h"
#include "tests/cuda/emulated/emulated.h"

namespace emulated = trainer::emulated;
using emulated::Work;
using Clock = std::chrono::steady_clock;

namespace {

struct Item {
  Work work;
  std::string what;
};

// A node waits for others of its graph; `done` belongs to a launch.
struct Node {
  Item item;
  std::vector<std::size_t> after;
};

struct Capture {
  CUstream_st* origin = nullptr;
  std::vector<Node> nodes;
  std::set<CUstream_st*> streams;
  bool broken = false;
  std::thread::id thread;
};

// One recording of an event.
struct Record {
  bool done = false;
  Clock::time_point at{};
};

struct Device;

}  // namespace

struct CUstream_st {
  Device* device = nullptr;
  std::deque<Item> queue;
  std::shared_ptr<Capture> capture;
  std::set<std::size_t> frontier;  // nodes that the next one of this stream comes after
  int priority = 0;
};

struct CUevent_st {
  std::shared_ptr<Record> record;
  std::shared_ptr<Capture> capture;  // of the last recording, if it was captured
  std::set<std::size_t> frontier;
  bool timing = true;
};

struct CUgraph_st {
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  std::vector<Node> nodes;
};

namespace {

struct Device {
  std::mutex mutex;  // one thread at a time drives its streams
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::minstd_rand generator{1};
};

std::mutex global;
std::map<std::byte*, std::size_t> device_memory, pinned_memory;
std::map<const void*, int> shared_allowed;
emulated::Counts totals;

// A thread and the device that it made current are a process and its device: each has streams of its own.
struct Current {
  int ordinal = 0;
  std::map<int, std::unique_ptr<Device>> devices;
  cudaError_t last = cudaSuccess;
};
Current& current() {
  static thread_local Current one;
  return one;
}
Device& device() {
  std::unique_ptr<Device>& slot = current().devices[current().ordinal];
  if (!slot) {
    slot = std::make_unique<Device>();
    slot->generator.seed(static_cast<unsigned>(emulated::settings().order * 7919 + 1));
  }
  return *slot;
}

cudaError_t fail(cudaError_t error) {
  current().last = error;
  return error;
}

// Bytes of shared memory that a block may ask for (CUDA C++ Programming Guide, technical specifications by compute
// capability).
std::size_t shared_limit() {
  const int capability = emulated::settings().capability;
  switch (capability) {
    case 80:
    case 87:
      return 163 * 1024;
    case 86:
    case 89:
    case 120:
    case 121:
      return 99 * 1024;
    case 90:
    case 100:
    case 103:
      return 227 * 1024;
    default:
      throw emulated::Misuse("no GPU of compute capability " + std::to_string(capability) + " is described here");
  }
}

// Of the exact size, so that the address sanitizer sees a byte too many.
void* aligned(std::size_t bytes) {
  void* at = nullptr;
  if (posix_memalign(&at, 256, std::max<std::size_t>(bytes, 1)) != 0) throw std::bad_alloc();
  return at;
}

bool within(const std::map<std::byte*, std::size_t>& memory, const void* at) {
  const std::lock_guard lock(global);
  const auto after = memory.upper_bound(static_cast<std::byte*>(const_cast<void*>(at)));
  if (after == memory.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return static_cast<const std::byte*>(at) < begin + size;
}

bool capturing_here() {
  for (const auto& [ordinal, one] : current().devices)
    for (const auto& stream : one->streams)
      if (stream->capture && stream->capture->thread == std::this_thread::get_id()) return true;
  return false;
}

// What waits or allocates has no place in a capture, and spoils it.
bool refused_by_capture() {
  if (!capturing_here()) return false;
  for (const auto& [ordinal, one] : current().devices)
    for (const auto& stream : one->streams)
      if (stream->capture) stream->capture->broken = true;
  return true;
}

// ---- Doing the work ----

// True if something was done.
bool advance(Device& device) {
  std::vector<CUstream_st*> ready;
  for (const auto& stream : device.streams)
    if (!stream->queue.empty()) ready.push_back(stream.get());
  if (emulated::settings().order == 1) std::reverse(ready.begin(), ready.end());
  if (emulated::settings().order > 1) std::shuffle(ready.begin(), ready.end(), device.generator);
  for (CUstream_st* stream : ready) {
    try {
      if (!stream->queue.front().work()) continue;
    } catch (...) {  // the context is lost, and with it all that was to come
      for (const auto& one : device.streams) one->queue.clear();
      throw;
    }
    stream->queue.pop_front();
    if (emulated::settings().work_us > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(emulated::settings().work_us));
    return true;
  }
  return false;
}

// Works until `over`; false if nothing could be done for a minute: a hang.
template <typename Over>
bool drive(Device& device, Over&& over) {
  const std::lock_guard lock(device.mutex);
  Clock::time_point since = Clock::now();
  while (!over()) {
    if (advance(device)) {
      since = Clock::now();
      continue;
    }
    if (Clock::now() - since > std::chrono::seconds(60)) return false;
    std::this_thread::yield();
  }
  return true;
}

cudaError_t put(CUstream_st* stream, Item item) {
  if (stream == nullptr) throw emulated::Misuse(item.what + " on the default stream, which waits for all others");
  if (!stream->capture) {
    const std::lock_guard lock(stream->device->mutex);
    stream->queue.push_back(std::move(item));
    return cudaSuccess;
  }
  Capture& capture = *stream->capture;
  capture.nodes.push_back({std::move(item), {stream->frontier.begin(), stream->frontier.end()}});
  stream->frontier = {capture.nodes.size() - 1};
  return cudaSuccess;
}

// The nodes of one launch, in any order that the edges allow.
class Launch {
 public:
  explicit Launch(const std::vector<Node>& nodes, unsigned seed)
      : nodes_(nodes), done_(nodes.size()), generator_(seed) {
    for (std::size_t i = 0; i < nodes.size(); ++i) left_.push_back(i);
  }
  bool operator()() {
    std::vector<std::size_t> order = left_;
    if (emulated::settings().order == 1) std::reverse(order.begin(), order.end());
    if (emulated::settings().order > 1) std::shuffle(order.begin(), order.end(), generator_);
    for (std::size_t i : order) {
      if (!std::all_of(nodes_[i].after.begin(), nodes_[i].after.end(),
                       [&](std::size_t before) { return done_[before]; }))
        continue;
      if (!nodes_[i].item.work()) continue;
      done_[i] = true;
      left_.erase(std::find(left_.begin(), left_.end(), i));
      break;
    }
    return left_.empty();
  }

 private:
  const std::vector<Node>& nodes_;
  std::vector<bool> done_;
  std::vector<std::size_t> left_;
  std::minstd_rand generator_;
};

emulated::Block& block_of_thread() {
  static thread_local emulated::Block block;
  return block;
}

void run_grid(const dim3& blocks, const dim3& threads, std::size_t shared_bytes, const std::function<void()>& thread) {
  const std::uint64_t count = std::uint64_t{blocks.x} * blocks.y * blocks.z, order = emulated::settings().order;
  for (std::uint64_t n = 0; n < count; ++n) {
    const std::uint64_t i = order % 2 == 1 ? count - 1 - n : n;
    const emulated::Index at{static_cast<unsigned>(i % blocks.x), static_cast<unsigned>(i / blocks.x % blocks.y),
                             static_cast<unsigned>(i / blocks.x / blocks.y)};
    block_of_thread().run(at, {threads.x, threads.y, threads.z}, {blocks.x, blocks.y, blocks.z}, shared_bytes, order,
                          thread);
  }
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  const bool pageable = !(within(device_memory, to) || within(pinned_memory, to)) ||
                        !(within(device_memory, from) || within(pinned_memory, from));
  if (pageable && stream != nullptr && stream->capture) {
    stream->capture->broken = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (pageable) throw emulated::Misuse("cudaMemcpyAsync of memory that is not pinned: it would wait for the copy");
  return put(stream, {[=] {
                        std::memcpy(to, from, bytes);
                        const std::lock_guard lock(global);
                        ++totals.copies;
                        return true;
                      },
                      "a copy"});
}

}  // namespace

namespace trainer::emulated {

Settings& settings() {
  static Settings one;
  return one;
}

Counts counts() {
  const std::lock_guard lock(global);
  return totals;
}

cudaError_t enqueue(cudaStream_t stream, Work work, const std::string& what) {
  return put(stream, {std::move(work), what});
}

std::shared_ptr<const void> capture_of(cudaStream_t stream) { return stream == nullptr ? nullptr : stream->capture; }

cudaError_t enqueue_kernel(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread) {
  const dim3 blocks = config.gridDim, threads = config.blockDim;
  const std::size_t per_block = std::size_t{threads.x} * threads.y * threads.z;
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0 || blocks.y > 65535 || blocks.z > 65535 || blocks.x > 2147483647u)
    return fail(cudaErrorInvalidConfiguration);
  if (per_block == 0 || per_block > 1024 || threads.z > 64) return fail(cudaErrorInvalidConfiguration);
  {
    const std::lock_guard lock(global);
    const auto allowed = shared_allowed.find(kernel);
    const std::size_t most = allowed == shared_allowed.end() ? 48 * 1024 : static_cast<std::size_t>(allowed->second);
    if (config.dynamicSmemBytes > most) return fail(cudaErrorInvalidValue);
    ++totals.kernels;
  }
  return put(config.stream, {[=, shared = config.dynamicSmemBytes, thread = std::move(thread)] {
                               run_grid(blocks, threads, shared, thread);
                               return true;
                             },
                             "a kernel"});
}

}  // namespace trainer::emulated

extern "C" {

// ---- Devices and errors ----

cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulated::settings().devices;
  return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= emulated::settings().devices) return fail(cudaErrorInvalidDevice);
  current().ordinal = ordinal;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* ordinal) {
  *ordinal = current().ordinal;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  if (ordinal < 0 || ordinal >= emulated::settings().devices) return fail(cudaErrorInvalidDevice);
  *properties = {};
  std::strncpy(properties->name, emulated::settings().name, sizeof properties->name - 1);
  properties->major = emulated::settings().capability / 10;
  properties->minor = emulated::settings().capability % 10;
  properties->multiProcessorCount = emulated::settings().units;
  properties->totalGlobalMem = static_cast<std::size_t>(emulated::settings().memory);
  properties->sharedMemPerBlockOptin = shared_limit();
  properties->warpSize = 32;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = emulated::settings().units;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = emulated::settings().capability / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = emulated::settings().capability % 10;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(shared_limit());
      return cudaSuccess;
    default:
      return fail(cudaErrorNotSupported);
  }
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int ordinal) {
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", ordinal);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(current().last, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return current().last; }
const char* cudaGetErrorName(cudaError_t error) {
  static std::map<cudaError_t, std::string> texts;  // for ever, as the Toolkit's are
  const std::lock_guard lock(global);
  return texts.try_emplace(error, "emulated error " + std::to_string(error)).first->second.c_str();
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t cudaDeviceSynchronize() {
  if (refused_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  Device& here = device();
  return drive(here,
               [&] {
                 return std::all_of(here.streams.begin(), here.streams.end(),
                                    [](const auto& stream) { return stream->queue.empty(); });
               })
             ? cudaSuccess
             : fail(cudaErrorLaunchTimeout);
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<std::size_t>(value) > shared_limit()) return fail(cudaErrorInvalidValue);
  const std::lock_guard lock(global);
  shared_allowed[function] = value;
  return cudaSuccess;
}

// ---- Memory ----

cudaError_t cudaMalloc(void** at, std::size_t bytes) {
  if (refused_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  const std::lock_guard lock(global);
  if (totals.allocated + static_cast<std::int64_t>(bytes) > emulated::settings().memory)
    return fail(cudaErrorMemoryAllocation);
  *at = aligned(bytes);
  std::memset(*at, 0xFF, bytes);
  device_memory[static_cast<std::byte*>(*at)] = std::max<std::size_t>(bytes, 1);
  totals.allocated += static_cast<std::int64_t>(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* at) {
  if (at == nullptr) return cudaSuccess;
  cudaDeviceSynchronize();
  const std::lock_guard lock(global);
  const auto found = device_memory.find(static_cast<std::byte*>(at));
  if (found == device_memory.end()) return fail(cudaErrorInvalidValue);
  totals.allocated -= static_cast<std::int64_t>(found->second);
  device_memory.erase(found);
  std::free(at);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** at, std::size_t bytes, unsigned) {
  const std::lock_guard lock(global);
  *at = aligned(bytes);
  std::memset(*at, 0xFF, bytes);
  pinned_memory[static_cast<std::byte*>(*at)] = std::max<std::size_t>(bytes, 1);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** at, std::size_t bytes) { return cudaHostAlloc(at, bytes, 0); }
cudaError_t cudaFreeHost(void* at) {
  if (at == nullptr) return cudaSuccess;
  const std::lock_guard lock(global);
  if (pinned_memory.erase(static_cast<std::byte*>(at)) == 0) return fail(cudaErrorInvalidValue);
  std::free(at);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** at, void* host, unsigned) {
  *at = host;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const std::lock_guard lock(global);
  *total = static_cast<std::size_t>(emulated::settings().memory);
  *free = *total - static_cast<std::size_t>(totals.allocated);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  // Streams that do not block on the default one go on beside it: nothing of theirs is waited for.
  if (refused_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* at, int value, std::size_t bytes) {
  if (refused_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  std::memset(at, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream) {
  return put(stream, {[=] {
                        std::memset(at, value, bytes);
                        return true;
                      },
                      "a memset"});
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return put(stream, {[=] {
                        function(data);
                        const std::lock_guard lock(global);
                        ++totals.host_functions;
                        return true;
                      },
                      "a host function"});
}

// ---- Streams and events ----

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (flags != cudaStreamNonBlocking) throw emulated::Misuse("a stream that blocks on the default one");
  Device& here = device();
  here.streams.push_back(std::make_unique<CUstream_st>());
  *stream = here.streams.back().get();
  (*stream)->device = &here;
  (*stream)->priority = priority;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (refused_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  if (stream == nullptr) return cudaSuccess;
  return drive(*stream->device, [&] { return stream->queue.empty(); }) ? cudaSuccess : fail(cudaErrorLaunchTimeout);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(stream->device->mutex);
  if (!stream->queue.empty()) advance(*stream->device);
  return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaStreamSynchronize(stream);
  Device& owner = *stream->device;
  const std::lock_guard lock(owner.mutex);
  std::erase_if(owner.streams, [&](const auto& one) { return one.get() == stream; });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  {
    const std::lock_guard lock(global);
    ++totals.waits;
  }
  if (event->capture) {
    if (stream->capture && stream->capture != event->capture) return fail(cudaErrorStreamCaptureMerge);
    stream->capture = event->capture;
    stream->capture->streams.insert(stream);
    stream->frontier.insert(event->frontier.begin(), event->frontier.end());
    return cudaSuccess;
  }
  if (stream->capture) {
    stream->capture->broken = true;
    return fail(cudaErrorStreamCaptureIsolation);
  }
  if (!event->record) return cudaSuccess;
  return put(stream, {[record = event->record] { return record->done; }, "a wait"});
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->timing = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  {
    const std::lock_guard lock(global);
    ++totals.events;
  }
  if (stream != nullptr && stream->capture) {
    event->capture = stream->capture;
    event->frontier = stream->frontier;
    event->record = nullptr;
    return cudaSuccess;
  }
  event->capture = nullptr;
  event->record = std::make_shared<Record>();
  return put(stream, {[record = event->record] {
                        record->done = true;
                        record->at = Clock::now();
                        return true;
                      },
                      "an event"});
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (refused_by_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  if (event->capture) return fail(cudaErrorCapturedEvent);
  if (!event->record) return cudaSuccess;
  return drive(device(), [&] { return event->record->done; }) ? cudaSuccess : fail(cudaErrorLaunchTimeout);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->capture) return fail(cudaErrorCapturedEvent);  // until it is recorded outside of a capture
  if (!event->record || event->record->done) return cudaSuccess;
  const std::lock_guard lock(device().mutex);
  if (!event->record->done) advance(device());
  return event->record->done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  if (!from->timing || !to->timing || !from->record || !to->record) return fail(cudaErrorInvalidResourceHandle);
  if (!from->record->done || !to->record->done) return fail(cudaErrorNotReady);
  *ms = std::chrono::duration<float, std::milli>(to->record->at - from->record->at).count();
  return cudaSuccess;
}

// ---- Graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->capture) return fail(cudaErrorStreamCaptureUnsupported);
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->streams = {stream};
  stream->frontier.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!stream->capture || stream->capture->origin != stream) return fail(cudaErrorStreamCaptureUnmatched);
  const std::shared_ptr<Capture> capture = stream->capture;
  // Everything must lie before the origin's end.
  std::set<std::size_t> joined;
  std::vector<std::size_t> open(stream->frontier.begin(), stream->frontier.end());
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    if (!joined.insert(node).second) continue;
    open.insert(open.end(), capture->nodes[node].after.begin(), capture->nodes[node].after.end());
  }
  for (CUstream_st* one : capture->streams) {
    one->capture = nullptr;
    one->frontier.clear();
  }
  if (capture->broken) return fail(cudaErrorStreamCaptureInvalidated);
  if (joined.size() != capture->nodes.size()) return fail(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::exchange(capture->nodes, {})};  // events that were recorded in it hold nothing of it
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream != nullptr && stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  if (nodes != nullptr) return fail(cudaErrorNotSupported);
  *count = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  {
    const std::lock_guard lock(global);
    ++totals.graphs;
  }
  const auto launch =
      std::make_shared<Launch>(executable->nodes, static_cast<unsigned>(emulated::settings().order * 31 + 7));
  return put(stream, {[launch] { return (*launch)(); }, "a graph"});
}

}  // extern "C"
