// The NCCL communicator, over the emulated NCCL: ranks are threads, each with a device of its own.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <thread>

#include "engine/comm/stream_communicator.h"
#include "engine/core/error.h"
#include "tests/cuda/emulated/emulated.h"
#include "tests/launch/star.h"
#include "tests/temporary.h"

using namespace trainer;
using trainer::tests::contains;
using trainer::tests::star_of;

namespace {

// Runs `body` on `world` ranks; what each threw, by rank ("" for none).
std::vector<std::string> on_ranks(int world, const std::function<void(StreamCommunicator&)>& body, int without = -1) {
  const std::string id = nccl_unique_id();
  std::vector<Connections> star = star_of(world);
  std::vector<std::string> failures(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    if (rank == without) continue;
    threads.emplace_back([&, rank] {
      try {
        const std::unique_ptr<StreamCommunicator> mine =
            nccl_communicator({rank, world, 0, id}, std::move(star[static_cast<std::size_t>(rank)]),
                              {.tell = [](const std::string&) {}, .end = [] {}});
        body(*mine);
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

void expect_none(const std::vector<std::string>& failures) {
  for (const std::string& failure : failures) CHECK(failure == "");
}

// doctest's assertions are not for several threads at once.
class Expectations {
 public:
  void operator()(bool holds) { wrong_ += !holds; }
  ~Expectations() { CHECK(wrong_ == 0); }

 private:
  std::atomic<int> wrong_{0};
};

template <typename T>
class OnDevice {
 public:
  explicit OnDevice(std::size_t elements) : elements_(elements) {
    void* at = nullptr;
    cudaMalloc(&at, elements * sizeof(T));
    data = static_cast<T*>(at);
  }
  OnDevice(std::size_t elements, const std::function<T(std::size_t)>& fill) : OnDevice(elements) {
    std::vector<T> values;
    for (std::size_t i = 0; i < elements; ++i) values.push_back(fill(i));
    cudaMemcpy(data, values.data(), elements * sizeof(T), cudaMemcpyHostToDevice);
  }
  ~OnDevice() { cudaFree(data); }
  std::vector<T> read() const {
    std::vector<T> values(elements_);
    cudaMemcpy(values.data(), data, elements_ * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }
  T* data = nullptr;

 private:
  std::size_t elements_;
};

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

float value(int rank, std::size_t i) { return static_cast<float>((rank + 1) * 100 + static_cast<int>(i % 89)); }

}  // namespace

TEST_CASE(
    "collectives on a stream give what their definitions say, over the world and over splits of it, ordered by key") {
  Expectations expect;
  expect_none(on_ranks(4, [&](StreamCommunicator& mine) {
    const int rank = mine.rank();
    const auto stream = new_stream();
    const auto world = mine.split(0, rank), backwards = mine.split(0, -rank), pairs = mine.split(rank % 2, rank),
               some = mine.split(rank < 3 ? 5 : -1, rank);
    expect(world->size() == 4 && world->index() == rank);
    expect(backwards->index() == 3 - rank);
    expect(pairs->size() == 2 && pairs->index() == rank / 2);
    expect(rank < 3 ? some != nullptr && some->size() == 3 : some == nullptr);

    OnDevice<float> sum(8, [&](std::size_t i) { return value(rank, i); }),
        pair(8, [&](std::size_t i) { return value(rank, i); });
    OnDevice<float> scattered(2), gathered(8), all(8, [&](std::size_t i) { return value(rank, i); }), turned(8),
        first(3, [&](std::size_t i) { return value(rank, i); });
    mine.all_reduce(*world, DType::f32, sum.data, 8, stream);
    mine.all_reduce(*pairs, DType::f32, pair.data, 8, stream);
    mine.reduce_scatter(*world, DType::f32, all.data, scattered.data, 8, stream);
    mine.all_gather(*backwards, scattered.data, gathered.data, 2 * sizeof(float), stream);
    mine.all_to_all(*world, all.data, turned.data, 2 * sizeof(float), stream);
    mine.broadcast(*backwards, first.data, 3 * sizeof(float), stream);
    cudaStreamSynchronize(stream);
    for (std::size_t i = 0; i < 8; ++i) {
      const float total = value(0, i) + value(1, i) + value(2, i) + value(3, i);
      expect(sum.read()[i] == total);
      expect(pair.read()[i] == value(rank % 2, i) + value(rank % 2 + 2, i));
      const std::size_t at = (3 - i / 2) * 2 + i % 2;  // member 0 is rank 3
      expect(gathered.read()[i] == value(0, at) + value(1, at) + value(2, at) + value(3, at));
      expect(turned.read()[i] == value(static_cast<int>(i / 2), static_cast<std::size_t>(rank) * 2 + i % 2));
    }
    for (std::size_t i = 0; i < 3; ++i) expect(first.read()[i] == value(3, i));
    const float floats = 8 * sizeof(float) * 3.0F / 4;  // of 4 ranks: what a ring sends of 8 floats
    const auto last = backwards->index() == 3 ? 0 : 3 * sizeof(float);
    expect(mine.bytes_sent() ==
           static_cast<std::int64_t>(2 * floats + 2 * 16 + floats + floats + floats) + static_cast<std::int64_t>(last));
    cudaStreamDestroy(stream);
  }));
}

TEST_CASE("an exchange is one: everyone sends to both neighbours and receives from both, parts in order") {
  Expectations expect;
  expect_none(on_ranks(4, [&](StreamCommunicator& mine) {
    const int rank = mine.rank(), next = (rank + 1) % 4, before = (rank + 3) % 4;
    const auto stream = new_stream();
    OnDevice<float> out(6, [&](std::size_t i) { return value(rank, i); }), in(6);
    const std::vector<Communicator::Part> sends{
        {next, out.data, 8}, {next, out.data + 2, 4}, {before, out.data + 3, 12}};
    const std::vector<Communicator::Part> receives{
        {next, in.data + 3, 12}, {before, in.data, 8}, {before, in.data + 2, 4}};
    mine.exchange(sends, receives, stream);
    cudaStreamSynchronize(stream);
    for (std::size_t i = 0; i < 6; ++i) expect(in.read()[i] == value(i < 3 ? before : next, i));
    expect(mine.bytes_sent() == 24);
    cudaStreamDestroy(stream);
  }));
}

TEST_CASE("a captured collective runs again with every replay") {
  Expectations expect;
  expect_none(on_ranks(2, [&](StreamCommunicator& mine) {
    const auto stream = new_stream();
    const auto world = mine.split(0, mine.rank());
    OnDevice<float> data(4, [&](std::size_t i) { return value(mine.rank(), i); });
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t step = nullptr;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    mine.all_reduce(*world, DType::f32, data.data, 4, stream);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&step, graph, 0);
    for (int replay = 0; replay < 3; ++replay) cudaGraphLaunch(step, stream);
    cudaStreamSynchronize(stream);
    for (std::size_t i = 0; i < 4; ++i) expect(data.read()[i] == 4 * (value(0, i) + value(1, i)));
    cudaGraphExecDestroy(step);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }));
}

TEST_CASE("the control channel goes beside NCCL: it works before any collective, and nothing of it is on a device") {
  Expectations expect;
  for (int world : {1, 3})
    expect_none(on_ranks(world, [&](StreamCommunicator& mine) {
      const int rank = mine.rank();
      expect(mine.world_size() == world);
      expect(mine.control().largest(rank) == world - 1);
      expect(mine.control().from_first(rank == 0 ? "step 7" : "") == "step 7");
      std::vector<std::int64_t> numbers(static_cast<std::size_t>(world));
      std::iota(numbers.begin(), numbers.end(), 5);
      expect(mine.control().each(rank + 5) == numbers);
      mine.control().barrier();
      expect(mine.bytes_sent() == 0);
    }));
}

TEST_CASE("memory is registered on all communicators, windows only where it is mapped and equal, and given back") {
  Expectations expect;
  expect_none(on_ranks(3, [&](StreamCommunicator& mine) {
    const auto pairs = mine.split(mine.rank() < 2 ? 0 : -1, mine.rank()), world = mine.split(0, mine.rank());
    void* const own = mine.allocate(1 << 16);
    OnDevice<float> other(64);
    mine.register_memory(own, mine.rank() == 2 ? 1 << 15 : 1 << 16, 0);
    mine.register_memory(other.data, 64 * 4, 0);
    const auto stream = new_stream();
    mine.all_reduce(*world, DType::u8, own, 64, stream);
    cudaStreamSynchronize(stream);
    mine.unregister_memory(other.data);
    mine.unregister_memory(own);
    mine.release(own);
    cudaStreamDestroy(stream);
    expect(true);
  }));
}

TEST_CASE("when one rank gives up, the others come out of what they wait in, on the host and on streams") {
  const auto failures = on_ranks(3, [&](StreamCommunicator& mine) {
    const auto world = mine.split(0, mine.rank());
    if (mine.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      mine.abort("rank 2: the disk is full");
      throw IoError("the disk is full");
    }
    if (mine.rank() == 1) mine.control().barrier();
    const auto stream = new_stream();
    OnDevice<float> data(4, [](std::size_t) { return 1.0F; });
    mine.all_reduce(*world, DType::f32, data.data, 4, stream);
    while (cudaStreamQuery(stream) == cudaErrorNotReady) mine.check();
    mine.check();
  });
  CHECK(failures[2] == "the disk is full");
  CHECK(contains(failures[1], "rank 2: the disk is full; this rank waits in barrier outside a program"));
  CHECK(contains(failures[0], "rank 2: the disk is full; this rank works outside a program"));
}

TEST_CASE("ranks whose memory is laid out differently share no symmetric window") {
  Expectations expect;
  expect_none(on_ranks(2, [&](StreamCommunicator& mine) {
    const auto world = mine.split(0, mine.rank());
    auto* const own = static_cast<std::byte*>(mine.allocate(1 << 16));
    mine.register_memory(own, 1 << 16, /*layout=*/mine.rank());
    const auto stream = new_stream();
    mine.all_reduce(*world, DType::u8, own + 256 * mine.rank(), 64, stream);
    expect(cudaStreamSynchronize(stream) == cudaSuccess);
    mine.unregister_memory(own);
    mine.release(own);
    cudaStreamDestroy(stream);
  }));
}

TEST_CASE("a registration that fails after it was accepted ends all ranks, which say how to do without windows") {
  const auto registers = [](StreamCommunicator& mine) {
    const auto world = mine.split(0, mine.rank());
    void* const own = mine.allocate(1 << 16);
    mine.register_memory(own, 1 << 16, 0);
    const auto stream = new_stream();
    mine.all_reduce(*world, DType::u8, own, 64, stream);
    cudaStreamSynchronize(stream);
    mine.unregister_memory(own);
    mine.release(own);
    cudaStreamDestroy(stream);
  };
  emulated::settings().windows_fail = true;
  for (const std::string& failure : on_ranks(2, registers)) CHECK(contains(failure, "NCCL_WIN_ENABLE=0"));
  ::setenv("NCCL_WIN_ENABLE", "0", 1);
  expect_none(on_ranks(2, registers));
  ::unsetenv("NCCL_WIN_ENABLE");
  emulated::settings().windows_fail = false;
}

TEST_CASE("two communicators on two streams keep the order of issue, issued and captured") {
  Expectations expect;
  expect_none(on_ranks(2, [&](StreamCommunicator& mine) {
    const auto first = mine.split(0, mine.rank()), second = mine.split(0, mine.rank());
    const auto stream = new_stream(), beside = new_stream();
    OnDevice<float> a(4, [](std::size_t) { return 1.0F; }), b(4, [](std::size_t) { return 1.0F; });
    // The first one waits for the host: the one issued after it does not go ahead of it.
    std::atomic<bool> open = false;
    emulated::enqueue(
        stream, [&] { return open.load(); }, "a wait for the host");
    mine.all_reduce(*first, DType::f32, a.data, 4, stream);
    mine.all_reduce(*second, DType::f32, b.data, 4, beside);
    for (int turn = 0; turn < 100; ++turn) expect(cudaStreamQuery(beside) == cudaErrorNotReady);
    open = true;
    expect(cudaDeviceSynchronize() == cudaSuccess);

    cudaEvent_t fork = nullptr, join = nullptr;
    cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(fork, stream);
    cudaStreamWaitEvent(beside, fork, 0);
    mine.all_reduce(*first, DType::f32, a.data, 4, stream);
    mine.all_reduce(*second, DType::f32, b.data, 4, beside);
    cudaEventRecord(join, beside);
    cudaStreamWaitEvent(stream, join, 0);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&executable, graph, 0);
    for (int replay = 0; replay < 3; ++replay) cudaGraphLaunch(executable, stream);
    expect(cudaDeviceSynchronize() == cudaSuccess);
    expect(a.read()[0] == 16 && b.read()[0] == 16);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
    cudaStreamDestroy(beside);
    cudaStreamDestroy(stream);
  }));
}

TEST_CASE("an abort ends what two communicators of one captured graph wait for, and the graph can be destroyed") {
  const auto begin = std::chrono::steady_clock::now();
  const auto failures = on_ranks(2, [&](StreamCommunicator& mine) {
    const auto first = mine.split(0, mine.rank()), second = mine.split(0, mine.rank());
    if (mine.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      mine.abort("rank 1: the disk is full");
      throw IoError("the disk is full");
    }
    const auto stream = new_stream(), beside = new_stream();
    OnDevice<float> a(4, [](std::size_t) { return 1.0F; }), b(4, [](std::size_t) { return 1.0F; });
    cudaEvent_t fork = nullptr, join = nullptr;
    cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(fork, stream);
    cudaStreamWaitEvent(beside, fork, 0);
    mine.all_reduce(*first, DType::f32, a.data, 4, stream);
    mine.all_reduce(*second, DType::f32, b.data, 4, beside);
    cudaEventRecord(join, beside);
    cudaStreamWaitEvent(stream, join, 0);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphLaunch(executable, stream);
    std::string why;
    try {
      while (cudaStreamQuery(stream) == cudaErrorNotReady) mine.check();
    } catch (const std::exception& error) {
      why = error.what();
    }
    cudaDeviceSynchronize();  // as the executor does before it lets go of its graphs
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    throw IoError(why);
  });
  CHECK(failures[1] == "the disk is full");
  CHECK(contains(failures[0], "rank 1: the disk is full"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

TEST_CASE("a start or a split that a rank does not reach ends with what was waited in") {
  ::setenv("TRAINER_RENDEZVOUS_S", "1", 1);
  for (const std::string& failure : on_ranks(
           3, [](StreamCommunicator&) {}, 2))
    if (!failure.empty())
      CHECK(contains(failure, "NCCL: the start of NCCL is not done after 1 s: a rank has not reached it"));
  ::unsetenv("TRAINER_RENDEZVOUS_S");
}

TEST_CASE("a rank whose process ends while NCCL starts is named at once, and ends the others") {
  const std::string id = nccl_unique_id();
  std::vector<Connections> star = star_of(3);
  std::array<std::string, 3> failures;
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (const int rank : {0, 1})
      threads.emplace_back([&, rank] {
        try {
          nccl_communicator({rank, 3, 0, id}, std::move(star[static_cast<std::size_t>(rank)]), {});
        } catch (const AbortedError& error) {
          failures[static_cast<std::size_t>(rank)] = error.what();
        }
      });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    star[2].clear();
  }
  for (const int rank : {0, 1})
    CHECK(failures[static_cast<std::size_t>(rank)] ==
          "the process of rank 2 has ended; this rank works outside a program");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
}

TEST_CASE("ranks that leave by an exception release the others") {
  const auto failures = on_ranks(2, [&](StreamCommunicator& mine) {
    if (mine.rank() == 1) throw DataError("bad ids");
    mine.control().barrier();
  });
  CHECK(failures[1] == "bad ids");
  CHECK(contains(failures[0], "rank 1 failed"));
}
