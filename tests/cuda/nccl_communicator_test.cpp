// The NCCL communicator, over the emulated NCCL: ranks are threads, each with a device of its own.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

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
#include "tests/temporary.h"

using namespace trainer;
using trainer::tests::contains;

namespace {

// Runs `body` on `world` ranks; what each threw, by rank ("" for none).
std::vector<std::string> on_ranks(int world, const std::function<void(StreamCommunicator&)>& body, int without = -1) {
  const std::string id = nccl_unique_id();
  std::vector<std::string> failures(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    if (rank == without) continue;
    threads.emplace_back([&, rank] {
      try {
        const std::unique_ptr<StreamCommunicator> mine =
            nccl_communicator({rank, world, 0, id}, {.tell = [](const std::string&) {}, .end = [] {}});
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

std::vector<int> up_to(int world) {
  std::vector<int> ranks(static_cast<std::size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
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
float rough(int rank, std::int64_t i) {
  return std::ldexp(1.0F + static_cast<float>((i * 37 + rank * 101) % 1009) / 1009,
                    static_cast<int>((i + rank * 7) % 24));
}

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

TEST_CASE("collectives on host memory go over the device, piece by piece, and sum in rank order") {
  Expectations expect;
  for (int world : {1, 2, 3})
    expect_none(on_ranks(world, [&](StreamCommunicator& mine) {
      const int rank = mine.rank();
      for (const std::vector<int>& members : {up_to(world), std::vector<int>{rank}}) {
        const auto group = mine.group(members);
        const auto n = static_cast<std::int64_t>(members.size());
        for (std::int64_t elements :
             {std::int64_t{1}, std::int64_t{5}, std::int64_t{600001}}) {  // the last is more than is staged at once
          std::vector<float> data;
          for (std::int64_t i = 0; i < elements; ++i) data.push_back(rough(rank, i));
          const std::vector<float> given = data;
          mine.all_reduce(*group, DType::f32, data.data(), elements);
          bool right = true;
          for (std::int64_t i = 0; i < elements; ++i) {
            float sum = rough(members[0], i);
            for (std::size_t m = 1; m < members.size(); ++m) sum += rough(members[m], i);
            right = right && data[static_cast<std::size_t>(i)] == sum;
          }
          expect(right);
          std::vector<float> all(static_cast<std::size_t>(elements * n));
          mine.all_gather(*group, given.data(), all.data(), elements * 4);
          for (std::int64_t m = 0; m < n; ++m)
            expect(all[static_cast<std::size_t>(m * elements + elements - 1)] ==
                   rough(members[static_cast<std::size_t>(m)], elements - 1));
          std::vector<float> first = given;
          mine.broadcast(*group, first.data(), elements * 4);
          expect(first.back() == rough(members[0], elements - 1));
          std::vector<float> scattered(static_cast<std::size_t>(elements)), many, turned(all.size());
          for (std::int64_t m = 0; m < n; ++m)
            for (std::int64_t i = 0; i < elements; ++i) many.push_back(rough(rank, m * elements + i));
          mine.reduce_scatter(*group, DType::f32, many.data(), scattered.data(), elements * n);
          const std::int64_t index = n == 1 ? 0 : rank, at = index * elements + elements - 1;
          float sum = rough(members[0], at);
          for (std::size_t m = 1; m < members.size(); ++m) sum += rough(members[m], at);
          expect(scattered.back() == sum);
          mine.all_to_all(*group, many.data(), turned.data(), elements * 4);
          for (std::int64_t m = 0; m < n; ++m)
            expect(turned[static_cast<std::size_t>(m * elements + elements - 1)] ==
                   rough(members[static_cast<std::size_t>(m)], at));
        }
      }
      mine.barrier();
    }));
}

TEST_CASE("host memory is exchanged in any pattern without ranks that wait in a circle") {
  constexpr int kWorld = 4;
  Expectations expect;
  expect_none(on_ranks(kWorld, [&](StreamCommunicator& mine) {
    const int rank = mine.rank();
    // Two parts from everyone to everyone, itself included, of sizes that differ; the second is more than is staged at
    // once.
    const auto bytes = [](int from, int to, int part) {
      return part == 0 ? std::int64_t{1} + from * 7 + to : (std::int64_t{3} << 20) + from * 5 + to * 11;
    };
    std::vector<std::vector<std::uint8_t>> out, in;
    std::vector<Communicator::Part> sends, receives;
    for (int peer = kWorld - 1; peer >= 0; --peer)
      for (int part : {0, 1}) {
        out.emplace_back(static_cast<std::size_t>(bytes(rank, peer, part)),
                         static_cast<std::uint8_t>(rank * 40 + peer * 5 + part));
        in.emplace_back(static_cast<std::size_t>(bytes(peer, rank, part)));
        sends.push_back({peer, out.back().data(), bytes(rank, peer, part)});
        receives.push_back({peer, in.back().data(), bytes(peer, rank, part)});
      }
    mine.exchange(sends, receives);
    std::size_t next = 0;
    for (int peer = kWorld - 1; peer >= 0; --peer)
      for (int part : {0, 1}) {
        const auto& got = in[next++];
        expect(std::all_of(got.begin(), got.end(), [&](std::uint8_t byte) {
          return byte == static_cast<std::uint8_t>(peer * 40 + rank * 5 + part);
        }));
      }
    // To rank 0 alone, one after another, as texts are gathered.
    std::vector<std::int64_t> all(kWorld, rank);
    if (rank == 0) {
      for (int peer = 1; peer < kWorld; ++peer) {
        const Communicator::Part part{peer, &all[static_cast<std::size_t>(peer)], 8};
        mine.exchange({}, {&part, 1});
      }
      expect(all == std::vector<std::int64_t>{0, 1, 2, 3});
    } else {
      const Communicator::Part part{0, all.data(), 8};
      mine.exchange({&part, 1}, {});
    }
  }));
}

TEST_CASE("memory is registered on all communicators, windows only where it is mapped and equal, and given back") {
  Expectations expect;
  expect_none(on_ranks(3, [&](StreamCommunicator& mine) {
    const auto pairs = mine.split(mine.rank() < 2 ? 0 : -1, mine.rank()), world = mine.split(0, mine.rank());
    void* const own = mine.allocate(1 << 16);
    OnDevice<float> other(64);
    mine.register_memory(own, mine.rank() == 2 ? 1 << 15 : 1 << 16);
    mine.register_memory(other.data, 64 * 4);
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
    if (mine.rank() == 1) mine.barrier();
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

TEST_CASE("a start or a split that a rank does not come to ends with what was waited in") {
  ::setenv("TRAINER_RENDEZVOUS_S", "1", 1);
  for (const std::string& failure : on_ranks(
           3, [](StreamCommunicator&) {}, 2))
    if (!failure.empty())
      CHECK(contains(failure, "NCCL: the start of NCCL is not done after 1 s: a rank has not come to it"));
  ::unsetenv("TRAINER_RENDEZVOUS_S");
}

TEST_CASE("ranks that leave by an exception release the others") {
  const auto failures = on_ranks(2, [&](StreamCommunicator& mine) {
    if (mine.rank() == 1) throw DataError("bad ids");
    mine.barrier();
  });
  CHECK(failures[1] == "bad ids");
  CHECK(contains(failures[0], "rank 1 failed"));
}
