// The emulated GPU itself: kernels that are wrong are found out, and streams do what their events say and no more.
#include <cuda_runtime.h>

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/mma.cuh"
#include "tests/cuda/emulated/emulated.h"

#undef CHECK  // the program's; the rest is doctest's
#include <doctest/doctest.h>

using namespace trainer;
using emulated::Misuse;

namespace {

// What a test makes, and destroys at its end.
class Scope {
 public:
  Scope() = default;
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    for (void* at : memory_) cudaFree(at);
    emulated::settings().order = 0;
  }
  cudaStream_t stream() {
    REQUIRE(cudaStreamCreateWithFlags(&streams_.emplace_back(), cudaStreamNonBlocking) == cudaSuccess);
    return streams_.back();
  }
  cudaEvent_t event() {
    REQUIRE(cudaEventCreateWithFlags(&events_.emplace_back(), cudaEventDisableTiming) == cudaSuccess);
    return events_.back();
  }
  template <typename T>
  T* memory(std::size_t count) {
    REQUIRE(cudaMalloc(&memory_.emplace_back(), count * sizeof(T)) == cudaSuccess);
    return static_cast<T*>(memory_.back());
  }

 private:
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::vector<void*> memory_;
};

template <typename... P, typename... A>
cudaError_t launch(cudaStream_t stream, unsigned blocks, unsigned threads, std::size_t shared, void (*kernel)(P...),
                   A... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Reverses a block's part through shared memory, with the barrier or without.
template <bool Barrier>
__global__ void reverse(int* x) {
  __shared__ int held[256];
  held[threadIdx.x] = x[threadIdx.x];
  if (Barrier) __syncthreads();
  x[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}

#if !defined(__SANITIZE_THREAD__)

template <bool Barrier>
std::set<std::vector<int>> results_of_reverse() {
  std::set<std::vector<int>> results;
  for (std::uint64_t order = 0; order < 4; ++order) {
    Scope scope;
    emulated::settings().order = order;
    const cudaStream_t stream = scope.stream();
    int* const x = scope.memory<int>(256);
    for (int i = 0; i < 256; ++i) x[i] = i;
    CHECK(launch(stream, 1, 256, 0, reverse<Barrier>, x) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    results.emplace(x, x + 256);
  }
  return results;
}

#else

/// Lane 0 writes what lane 1 reads: behind a shuffle, which orders no memory, or behind __syncwarp.
template <bool Barrier>
__global__ void tell_a_lane(int* x) {
  if (threadIdx.x == 0) x[0] = 5;
  if (Barrier) __syncwarp();
  const int all = __shfl_xor_sync(0xFFFFFFFFu, 0, 1);
  if (threadIdx.x == 1) x[1] = x[0] + all;
}

/// Counts by atomics, and reads the count behind a barrier or without one.
template <bool Barrier>
__global__ void count_threads(int* x) {
  atomicAdd(x, 1);
  if (Barrier) __syncthreads();
  if (threadIdx.x == 0) x[1] = *x;
}

/// With 64 threads in each of two blocks, in one order.
void run_once(void (*kernel)(int*)) {
  Scope scope;
  const cudaStream_t stream = scope.stream();
  int* const x = scope.memory<int>(64);
  CHECK(launch(stream, 2, 64, 0, kernel, x) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

/// Whether the thread sanitizer reports a race in another process, which runs one test case that is skipped here.
bool races(const std::string& test_case) {
  const std::string command = "TSAN_OPTIONS='halt_on_error=1 exitcode=42' " +
                              std::filesystem::read_symlink("/proc/self/exe").string() + " --no-skip --test-case='" +
                              test_case + "' > /dev/null 2>&1";
  const int status = std::system(command.c_str());
  REQUIRE(WIFEXITED(status));
  REQUIRE((WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 42));
  return WEXITSTATUS(status) == 42;
}

#endif

__global__ void half_a_barrier(int* x) {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    __syncwarp(0xFFFF0000u);
  if (threadIdx.x >= 16) __syncwarp(0xFFFFFFFFu);
  x[threadIdx.x] = 1;
}

__global__ void sum_of_lanes(float* x) {
  float value = static_cast<float>(threadIdx.x);
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  x[threadIdx.x] = value;
}

__global__ void lying_mask(float* x) {
  if (threadIdx.x == 31) return;
  x[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, 1.0F, 1);
}

__global__ void move_vectors(float* x) {
  using kernels::cuda::load, kernels::cuda::store;
  store(x, 0, load<4>(x, 0));
}

__global__ void copy_sixteen_bytes(float* x) {
  __shared__ __align__(16) float held[4];
  kernels::cuda::copy_async(held, x, true);
}

__global__ void add(int* x, int value) { *x += value; }
__global__ void twice(int* x) { *x *= 2; }

}  // namespace

#if defined(__SANITIZE_THREAD__)
TEST_CASE("races: no barrier" * doctest::skip()) { run_once(reverse<false>); }
TEST_CASE("races: barrier" * doctest::skip()) { run_once(reverse<true>); }
TEST_CASE("races: a shuffle" * doctest::skip()) { run_once(tell_a_lane<false>); }
TEST_CASE("races: syncwarp" * doctest::skip()) { run_once(tell_a_lane<true>); }
TEST_CASE("races: atomics" * doctest::skip()) { run_once(count_threads<false>); }
TEST_CASE("races: atomics and a barrier" * doctest::skip()) { run_once(count_threads<true>); }

TEST_CASE("the thread sanitizer reports the missing barrier of a kernel from one order of its threads") {
  CHECK(races("races: no barrier"));
  CHECK_FALSE(races("races: barrier"));
  CHECK(races("races: a shuffle"));
  CHECK_FALSE(races("races: syncwarp"));
  CHECK(races("races: atomics"));
  CHECK_FALSE(races("races: atomics and a barrier"));
}
#endif

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("a kernel without its barrier gives different results in different orders, with it always the same") {
  const std::set<std::vector<int>> with = results_of_reverse<true>();
  REQUIRE(with.size() == 1);
  CHECK((*with.begin())[0] == 255);
  CHECK(results_of_reverse<false>().size() > 1);
}
#endif

TEST_CASE("threads that wait for each other in different places are an error") {
  Scope scope;
  const cudaStream_t stream = scope.stream();
  int* const x = scope.memory<int>(32);
  CHECK(launch(stream, 1, 32, 0, half_a_barrier, x) == cudaSuccess);
  CHECK_THROWS_AS(cudaStreamSynchronize(stream), Misuse);
}

TEST_CASE("a shuffle sums the lanes, and one whose mask names a thread that has ended is an error") {
  Scope scope;
  const cudaStream_t stream = scope.stream();
  float* const x = scope.memory<float>(32);
  for (std::uint64_t order : {0, 1, 5}) {
    emulated::settings().order = order;
    CHECK(launch(stream, 1, 32, 0, sum_of_lanes, x) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    for (int i = 0; i < 32; ++i) CHECK(x[i] == 496);
  }
  CHECK(launch(stream, 1, 32, 0, lying_mask, x) == cudaSuccess);
  CHECK_THROWS_AS(cudaStreamSynchronize(stream), Misuse);
}

TEST_CASE("an access of 16 bytes is refused where its address is no multiple of them") {
  Scope scope;
  const cudaStream_t stream = scope.stream();
  float* const x = scope.memory<float>(8);
  for (const auto kernel : {move_vectors, copy_sixteen_bytes}) {
    CHECK(launch(stream, 1, 1, 0, kernel, x) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(launch(stream, 1, 1, 0, kernel, x + 2) == cudaSuccess);
    CHECK_THROWS_AS(cudaStreamSynchronize(stream), Misuse);
  }
}

TEST_CASE("launches beyond a GPU's limits are refused") {
  Scope scope;
  const cudaStream_t stream = scope.stream();
  int* const x = scope.memory<int>(1);
  CHECK(launch(stream, 0, 1, 0, twice, x) == cudaErrorInvalidConfiguration);
  CHECK(launch(stream, 1, 1025, 0, twice, x) == cudaErrorInvalidConfiguration);
  CHECK(launch(stream, 1, 1, 48 * 1024 + 1, twice, x) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(&twice), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             100 * 1024) == cudaSuccess);
  CHECK(launch(stream, 1, 1, 100 * 1024, twice, x) == cudaSuccess);
  for (const auto& [capability, most] : {std::pair{80, 163}, {89, 99}, {90, 227}}) {
    emulated::settings().capability = capability;
    CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(&twice), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               most * 1024 + 1) == cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(&twice), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               most * 1024) == cudaSuccess);
  }
  emulated::settings().capability = 90;
  CHECK_THROWS_AS(launch(nullptr, 1, 1, 0, twice, x), Misuse);
}

TEST_CASE("streams go on in any order but what events fix, issued and captured") {
  for (bool with_event : {true, false})
    for (bool captured : {true, false}) {
      std::set<int> results;
      for (std::uint64_t order = 0; order < 8; ++order) {
        Scope scope;
        emulated::settings().order = order;
        const cudaStream_t a = scope.stream(), b = scope.stream();
        int* const x = scope.memory<int>(1);
        *x = 1;
        const cudaEvent_t fork = scope.event(), added = scope.event(), join = scope.event();
        if (captured) CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        CHECK(cudaEventRecord(fork, a) == cudaSuccess);
        CHECK(cudaStreamWaitEvent(b, fork, 0) == cudaSuccess);
        CHECK(launch(a, 1, 1, 0, add, x, 3) == cudaSuccess);
        CHECK(cudaEventRecord(added, a) == cudaSuccess);
        if (with_event) CHECK(cudaStreamWaitEvent(b, added, 0) == cudaSuccess);
        CHECK(launch(b, 1, 1, 0, twice, x) == cudaSuccess);
        CHECK(cudaEventRecord(join, b) == cudaSuccess);
        CHECK(cudaStreamWaitEvent(a, join, 0) == cudaSuccess);
        if (captured) {
          cudaGraph_t graph = nullptr;
          cudaGraphExec_t step = nullptr;
          CHECK(cudaStreamEndCapture(a, &graph) == cudaSuccess);
          CHECK(cudaGraphInstantiate(&step, graph, 0) == cudaSuccess);
          CHECK(*x == 1);  // capturing runs nothing
          CHECK(cudaGraphLaunch(step, a) == cudaSuccess);
          CHECK(cudaStreamSynchronize(a) == cudaSuccess);
          cudaGraphExecDestroy(step);
          cudaGraphDestroy(graph);
        }
        CHECK(cudaStreamSynchronize(a) == cudaSuccess);
        results.insert(*x);
      }
      INFO("with the event: ", with_event, ", captured: ", captured);
      CHECK(results == (with_event ? std::set<int>{8} : std::set<int>{5, 8}));
    }
}

TEST_CASE("a capture whose fork does not join, or that waits, is refused") {
  Scope scope;
  const cudaStream_t a = scope.stream(), b = scope.stream();
  int* const x = scope.memory<int>(1);
  const cudaEvent_t fork = scope.event();
  cudaGraph_t graph = nullptr;

  CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudaEventRecord(fork, a) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(b, fork, 0) == cudaSuccess);
  CHECK(launch(b, 1, 1, 0, twice, x) == cudaSuccess);
  CHECK(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureUnjoined);

  CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureInvalidated);

  CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  int host = 0;
  CHECK_THROWS_AS(cudaMemcpyAsync(x, &host, sizeof host, cudaMemcpyHostToDevice, b), Misuse);  // it would wait
  CHECK(cudaMemcpyAsync(x, &host, sizeof host, cudaMemcpyHostToDevice, a) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureInvalidated);
}
