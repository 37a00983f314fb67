// Collectives of every backend, against sums worked out by one thread. Started by itself the program runs them on ranks
// as threads; started by mpirun, each process is a rank, and a case takes the first of them.
#include "engine/comm/host_communicator.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "engine/comm/sums.h"
#include "engine/train/ranks.h"
#include "tests/temporary.h"

using namespace trainer;
using trainer::tests::contains;

namespace {

// This process's rank under mpirun, else null. MPI begins once a process and ends with it.
HostCommunicator* process() {
  static const std::unique_ptr<HostCommunicator> mine =
      detect_launcher(process_environment())
          ? mpi_communicator({.tell = [](const std::string& message) { std::fputs((message + "\n").c_str(), stderr); },
                              .end = [] { std::_Exit(1); }})
          : nullptr;
  return mine.get();
}

std::vector<int> everyone(int world) {
  std::vector<int> members(static_cast<std::size_t>(world));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// Runs a case on `world` ranks; nothing where mpirun started fewer.
void on_ranks(int world, const std::function<void(HostCommunicator&)>& run) {
  if (process() == nullptr)
    return run_ranks(world, [&](Communicator& one) { run(dynamic_cast<HostCommunicator&>(one)); });
  if (process()->rank() < world && world <= process()->world_size()) run(*process());
}

float value(int rank, std::int64_t i) { return static_cast<float>((rank + 1) * 1000 + i % 977); }

// Of very different sizes, so that another order of the sum shows.
float rough_value(int rank, std::int64_t i) {
  return std::ldexp(1.0F + static_cast<float>((i * 37 + rank * 101) % 1009) / 1009,
                    static_cast<int>((i + rank * 7) % 24));
}

std::uint16_t bf16(float x) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16); }

// Whether `data` is Σ in rank order of rough_value over `world` ranks, from element `first` on.
bool is_sum_in_rank_order(const std::vector<float>& data, int world, std::int64_t first = 0) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    float sum = rough_value(0, first + static_cast<std::int64_t>(i));
    for (int rank = 1; rank < world; ++rank) sum += rough_value(rank, first + static_cast<std::int64_t>(i));
    if (data[i] != sum) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("all_reduce sums in rank order, whether slices divide or not, and counts what a ring would send") {
  for (int world : {1, 2, 3, 4, 7})
    for (std::int64_t n : {std::int64_t{1}, std::int64_t{5}, std::int64_t{1024}, std::int64_t{4099},
                           std::int64_t{100003}, std::int64_t{5000001} / world}) {
      CAPTURE(world);
      CAPTURE(n);
      on_ranks(world, [&](HostCommunicator& communicator) {
        std::vector<float> mine;
        for (std::int64_t i = 0; i < n; ++i) mine.push_back(rough_value(communicator.rank(), i));
        const auto group = communicator.group(everyone(world));
        const std::int64_t before = communicator.bytes_sent();
        communicator.all_reduce(*group, DType::f32, mine.data(), n);
        CHECK(is_sum_in_rank_order(mine, world));
        CHECK(communicator.bytes_sent() - before == 2 * n * 4 * (world - 1) / world);
      });
    }
}

TEST_CASE("reduce_scatter gives each rank its slice of the sum, elsewhere or in its place") {
  for (int world : {1, 2, 4}) {
    const std::int64_t slice = 700001;
    on_ranks(world, [&](HostCommunicator& communicator) {
      const std::int64_t first = communicator.rank() * slice;
      std::vector<float> data, sum(static_cast<std::size_t>(slice));
      for (std::int64_t i = 0; i < slice * world; ++i) data.push_back(rough_value(communicator.rank(), i));
      const auto group = communicator.group(everyone(world));
      communicator.reduce_scatter(*group, DType::f32, data.data(), sum.data(), slice * world);
      CHECK(is_sum_in_rank_order(sum, world, first));
      communicator.reduce_scatter(*group, DType::f32, data.data(), data.data() + first, slice * world);
      CHECK(std::equal(sum.begin(), sum.end(), data.begin() + first));
    });
  }
}

TEST_CASE("all_reduce of bf16 sums in f32 and rounds once") {
  // 256 + 1 + 1 is 258 in f32; in bf16 each 1 alone would be lost.
  const float parts[3] = {256, 1, 1};
  on_ranks(3, [&](HostCommunicator& communicator) {
    const auto group = communicator.group(everyone(3));
    for (std::size_t n : {1, 9999}) {
      std::vector<std::uint16_t> mine(n, bf16(parts[communicator.rank()]));
      communicator.all_reduce(*group, DType::bf16, mine.data(), static_cast<std::int64_t>(n));
      CHECK(mine == std::vector<std::uint16_t>(n, bf16(258)));
    }
  });
}

TEST_CASE("reduce_scatter then all_gather is all_reduce, in sub-groups too") {
  const int world = process() == nullptr ? 6 : 4, members = world / 2;
  const std::int64_t n = 1000 * members;
  on_ranks(world, [&](HostCommunicator& communicator) {
    const int rank = communicator.rank(), parity = rank % 2;
    std::vector<int> ranks;
    for (int other = parity; other < world; other += 2) ranks.push_back(other);
    const auto group = communicator.group(ranks);
    std::vector<double> data(static_cast<std::size_t>(n)), slice(1000), whole(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) data[static_cast<std::size_t>(i)] = value(rank, i);
    communicator.reduce_scatter(*group, DType::f64, data.data(), slice.data(), n);
    communicator.all_gather(*group, slice.data(), whole.data(), 1000 * 8);
    communicator.all_reduce(*group, DType::f64, data.data(), n);
    CHECK(whole == data);
    CHECK(data[5] == members * (1005.0 + 1000 * parity) + 1000.0 * members * (members - 1));
  });
}

TEST_CASE("all_to_all is a transposition") {
  for (int world : {2, 4})
    on_ranks(world, [&](HostCommunicator& communicator) {
      const int rank = communicator.rank();
      const std::size_t part = 40000, ranks = static_cast<std::size_t>(world);
      std::vector<int> in(part * ranks), out(part * ranks), expected(part * ranks);
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = rank * 100 + static_cast<int>(i / part);
      for (std::size_t i = 0; i < in.size(); ++i) expected[i] = static_cast<int>(i / part) * 100 + rank;
      const auto group = communicator.group(everyone(world));
      communicator.all_to_all(*group, in.data(), out.data(), static_cast<std::int64_t>(part) * 4);
      CHECK(out == expected);
    });
}

TEST_CASE("a shift gives everyone what the member before has") {
  for (int world : {2, 3, 4})
    on_ranks(world, [&](HostCommunicator& communicator) {
      const int rank = communicator.rank();
      const std::size_t n = 40001;
      std::vector<int> in(n), out(n), expected(n);
      std::iota(in.begin(), in.end(), rank * 1000);
      std::iota(expected.begin(), expected.end(), (rank + world - 1) % world * 1000);
      const std::int64_t before = communicator.bytes_sent();
      communicator.shift(*communicator.group(everyone(world)), in.data(), out.data(), static_cast<std::int64_t>(n) * 4);
      CHECK(out == expected);
      CHECK(communicator.bytes_sent() - before == static_cast<std::int64_t>(n) * 4);
    });
}

TEST_CASE("broadcast gives everyone what the first has, small or large") {
  for (int world : {2, 3, 4})
    for (std::size_t n : {1, 1001, 100001})
      on_ranks(world, [&](HostCommunicator& communicator) {
        std::vector<int> data(n), expected(n);
        std::iota(expected.begin(), expected.end(), 42);
        if (communicator.rank() == 0) data = expected;
        const auto group = communicator.group(everyone(world));
        communicator.broadcast(*group, data.data(), static_cast<std::int64_t>(n) * 4);
        CHECK(data == expected);
      });
}

TEST_CASE("exchange passes data around a ring without waiting on itself") {
  for (int world : {2, 4, 5})
    on_ranks(world, [&](HostCommunicator& communicator) {
      const int rank = communicator.rank(), next = (rank + 1) % world, previous = (rank + world - 1) % world;
      for (int round = 0; round < 20; ++round) {
        std::vector<int> out(33333, rank * 100 + round), in(33333);
        const Communicator::Part send{next, out.data(), 33333 * 4}, receive{previous, in.data(), 33333 * 4};
        communicator.exchange({&send, 1}, {&receive, 1});
        CHECK(in == std::vector<int>(33333, previous * 100 + round));
      }
    });
}

TEST_CASE("parts of an exchange between the same two ranks match in order") {
  on_ranks(2, [&](HostCommunicator& communicator) {
    const int peer = 1 - communicator.rank();
    std::vector<int> out{1, 2, 3}, in(3);
    std::vector<Communicator::Part> sends, receives;
    for (std::size_t i = 0; i < 3; ++i) {
      sends.push_back({peer, &out[i], 4});
      receives.push_back({peer, &in[i], 4});
    }
    communicator.exchange(sends, receives);
    CHECK(in == out);
  });
}

TEST_CASE("ranks tell each other texts and numbers, and rank 0 gets parts from those that it asks") {
  const int world = process() == nullptr ? 3 : process()->world_size();
  on_ranks(world, [&](HostCommunicator& communicator) {
    ControlChannel& channel = communicator.control();
    const int rank = communicator.rank();
    CHECK(channel.from_first(rank == 0 ? "a checkpoint" : "") == "a checkpoint");
    CHECK(channel.from_first("").empty());
    const std::vector<std::string> all = channel.to_first(std::string(static_cast<std::size_t>(rank) * 1000, 'x'));
    REQUIRE(all.size() == (rank == 0 ? static_cast<std::size_t>(world) : 0));
    for (std::size_t other = 0; other < all.size(); ++other) CHECK(all[other].size() == other * 1000);
    std::vector<std::int64_t> numbers;
    for (int other = 0; other < world; ++other) numbers.push_back(-7 * other);
    CHECK(channel.each(-7 * rank) == numbers);
    CHECK(channel.largest(rank * 10) == (world - 1) * 10);
    CHECK(channel.largest(-rank - 5) == -5);
    CHECK(channel.any(rank == world - 1));
    CHECK(!channel.any(false));
    channel.barrier();
    // Parts of 1 and 2 MB, from the last rank first.
    const auto byte = [](int from, std::size_t i) { return static_cast<char>(from * 31 + static_cast<int>(i % 251)); };
    std::vector<std::string> parts;
    std::vector<ControlChannel::Part> fetched;
    for (int other = world - 1; other > 0; --other) parts.emplace_back(static_cast<std::size_t>(other) << 20, '\0');
    for (std::size_t i = 0; i < parts.size(); ++i)
      fetched.push_back({world - 1 - static_cast<int>(i), parts[i].data(), static_cast<std::int64_t>(parts[i].size())});
    if (rank == 0) {
      channel.fetch(fetched);
    } else {
      std::string mine(static_cast<std::size_t>(rank) << 20, '\0');
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = byte(rank, i);
      channel.give_first(mine.data(), static_cast<std::int64_t>(mine.size()));
    }
    bool right = true;
    for (std::size_t part = 0; rank == 0 && part < parts.size(); ++part)
      for (std::size_t i = 0; i < parts[part].size(); ++i)
        right = right && parts[part][i] == byte(fetched[part].peer, i);
    CHECK(right);
    channel.barrier();
  });
}

TEST_CASE("ranks that make different calls get an error that names both") {
  if (process() != nullptr) return;  // it ends the channel
  std::string message;
  try {
    run_ranks(2, [](Communicator& communicator) {
      ControlChannel& channel = communicator.control();
      channel.barrier();
      communicator.rank() == 0 ? channel.barrier() : static_cast<void>(channel.largest(3));
    });
  } catch (const std::exception& error) {
    message = error.what();
  }
  CHECK(contains(message, "rank 1 is in largest (call 2), rank 0 in barrier (call 2)"));
}

TEST_CASE("a rank that fails releases the others, and its own error is what is thrown") {
  if (process() != nullptr) return;  // processes that lose one another are killed in tests/tools/mpi_test.cpp
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH_AS(run_ranks(4,
                                 [&](Communicator& communicator) {
                                   if (communicator.rank() == 2) throw std::runtime_error("disk full");
                                   communicator.control().barrier();
                                 }),
                       "disk full", std::runtime_error);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
}

// Takes 7 GB and half a minute: by hand, with --no-skip.
TEST_CASE("messages beyond 2^31 bytes arrive whole" * doctest::skip()) {
  on_ranks(2, [&](HostCommunicator& communicator) {
    const std::int64_t bytes = (std::int64_t{1} << 31) + 12;
    std::vector<std::uint8_t> data(static_cast<std::size_t>(bytes));
    const auto byte = [](std::int64_t i) { return static_cast<std::uint8_t>(i * 2654435761 >> 13); };
    const int rank = communicator.rank(), peer = 1 - rank;
    if (rank == 0)
      for (std::int64_t i = 0; i < bytes; ++i) data[static_cast<std::size_t>(i)] = byte(i);
    const Communicator::Part part{peer, data.data(), bytes};
    rank == 0 ? communicator.exchange({&part, 1}, {}) : communicator.exchange({}, {&part, 1});
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < bytes; ++i) wrong += data[static_cast<std::size_t>(i)] != byte(i);
    CHECK(wrong == 0);
    const auto group = communicator.group(everyone(2));
    auto* floats = reinterpret_cast<float*>(data.data());
    for (std::int64_t i = 0; i < bytes / 4; ++i) floats[i] = value(rank, i);
    communicator.all_reduce(*group, DType::f32, floats, bytes / 4);
    for (std::int64_t i = 0; i < bytes / 4; ++i) wrong += floats[i] != value(0, i) + value(1, i);
    CHECK(wrong == 0);
  });
}

// A rank that an abort releases frees its memory at once. Where another one still read it, this would crash.
TEST_CASE("after an abort in the midst of a collective or an exchange no rank reads what another has freed") {
  if (process() != nullptr) return;
  constexpr int kWorld = 4, kRounds = 60;
  constexpr std::int64_t kElements = 1 << 18;  // 1 MiB
  for (const bool exchanges : {false, true})
    for (int round = 0; round < kRounds; ++round) {
      std::atomic<int> released = 0;
      const auto run = [&](Communicator& one) {
        auto& communicator = dynamic_cast<HostCommunicator&>(one);
        const int rank = communicator.rank();
        const auto group = communicator.group(everyone(kWorld));
        const std::size_t bytes = kElements * 4;
        void* const pages = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(pages != MAP_FAILED);
        auto* const mine = static_cast<float*>(pages);
        std::jthread stop;
        if (rank == 0)
          stop = std::jthread([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(200 + 97 * round));
            communicator.abort("enough");
          });
        try {
          for (;;)
            if (exchanges) {
              const Communicator::Part to{(rank + 1) % kWorld, mine, bytes};
              const Communicator::Part from{(rank + kWorld - 1) % kWorld, mine + kElements, bytes};
              communicator.exchange({&to, 1}, {&from, 1});
            } else {
              communicator.all_reduce(*group, DType::f32, mine, kElements);
            }
        } catch (const AbortedError& error) {
          released += std::string(error.what()) == "enough" ? 1 : 0;
        }
        munmap(pages, 2 * bytes);
      };
      run_ranks(kWorld, run);
      CHECK(released == kWorld);
    }
}
