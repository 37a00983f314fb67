// The emulated NCCL itself: collectives between threads by their definitions, splits, exchanges, captures, and
// mismatches that are found.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <nccl.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/emulated/block.h"
#include "tests/cuda/emulated/emulated.h"

using namespace trainer;

namespace {

ncclComm_t wait_for(ncclComm_t comm) {
  for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) ncclCommGetAsyncError(comm, &state);
  return comm;
}

struct Rank {
  int rank = 0;
  ncclComm_t world = nullptr;
  cudaStream_t stream = nullptr;
  float* memory = nullptr;  // 64 elements
};

void with_ranks(int size, const std::function<void(Rank&)>& body) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      Rank rank{r};
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclCommInitRankConfig(&rank.world, size, id, r, &config);
      wait_for(rank.world);
      cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking);
      void* at = nullptr;
      cudaMalloc(&at, 64 * sizeof(float));
      rank.memory = static_cast<float*>(at);
      for (int i = 0; i < 64; ++i) rank.memory[i] = static_cast<float>(100 * r + i);
      body(rank);
      cudaFree(at);
      ncclCommDestroy(rank.world);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("collectives of four threads give what their definitions say, in place and captured") {
  std::atomic<int> wrong = 0;
  with_ranks(4, [&](Rank& r) {
    const auto expect = [&](bool holds) { wrong += !holds; };
    ncclAllReduce(r.memory, r.memory, 8, ncclFloat32, ncclSum, r.world, r.stream);
    ncclReduceScatter(r.memory + 16, r.memory + 16 + 4 * r.rank, 4, ncclFloat32, ncclSum, r.world, r.stream);
    ncclAllGather(r.memory + 32 + 2 * r.rank, r.memory + 32, 2, ncclFloat32, r.world, r.stream);
    ncclBroadcast(r.memory + 48, r.memory + 48, 4, ncclFloat32, 2, r.world, r.stream);
    cudaStreamSynchronize(r.stream);
    for (int i = 0; i < 8; ++i) expect(r.memory[i] == static_cast<float>(600 + 4 * i));
    for (int i = 0; i < 4; ++i)
      expect(r.memory[16 + 4 * r.rank + i] == static_cast<float>(600 + 4 * (16 + 4 * r.rank + i)));
    for (int i = 0; i < 8; ++i) expect(r.memory[32 + i] == static_cast<float>(100 * (i / 2) + 32 + i));
    for (int i = 0; i < 4; ++i) expect(r.memory[48 + i] == static_cast<float>(200 + 48 + i));

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t step = nullptr;
    cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal);
    ncclAllReduce(r.memory, r.memory, 8, ncclFloat32, ncclSum, r.world, r.stream);
    cudaStreamEndCapture(r.stream, &graph);
    cudaGraphInstantiate(&step, graph, 0);
    for (int replay = 0; replay < 3; ++replay) cudaGraphLaunch(step, r.stream);
    cudaStreamSynchronize(r.stream);
    for (int i = 0; i < 8; ++i) expect(r.memory[i] == static_cast<float>((600 + 4 * i) * 64));
    cudaGraphExecDestroy(step);
    cudaGraphDestroy(graph);
  });
  CHECK(wrong == 0);
}

TEST_CASE("a split makes groups by color, in the order of keys, and exchanges cross without waiting on each other") {
  std::atomic<int> wrong = 0;
  with_ranks(4, [&](Rank& r) {
    ncclComm_t half = nullptr;
    ncclCommSplit(r.world, r.rank % 2, -r.rank, &half, nullptr);
    wait_for(half);
    int index = -1, size = 0;
    ncclCommUserRank(half, &index);
    ncclCommCount(half, &size);
    wrong += size != 2 || index != (r.rank < 2 ? 1 : 0);

    const int other = r.rank ^ 1;
    ncclGroupStart();
    ncclRecv(r.memory, 4, ncclFloat32, other, r.world, r.stream);
    ncclSend(r.memory + 8, 4, ncclFloat32, other, r.world, r.stream);
    ncclGroupEnd();
    cudaStreamSynchronize(r.stream);
    for (int i = 0; i < 4; ++i) wrong += r.memory[i] != static_cast<float>(100 * other + 8 + i);
  });
  CHECK(wrong == 0);
}

TEST_CASE("ranks that come to different collectives are found out") {
  std::atomic<int> found = 0;
  with_ranks(2, [&](Rank& r) {
    ncclAllReduce(r.memory, r.memory, r.rank == 0 ? 4 : 8, ncclFloat32, ncclSum, r.world, r.stream);
    try {
      for (int turn = 0; turn < 1000 && found == 0; ++turn) cudaStreamQuery(r.stream);
    } catch (const emulated::Misuse&) {
      ++found;
    }
    ncclCommAbort(r.world);
  });
  CHECK(found == 1);
}
