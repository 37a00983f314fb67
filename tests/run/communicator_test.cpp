// Collectives of ranks as threads, against sums worked out by one thread.
#include "engine/run/communicator.h"

#include <doctest/doctest.h>

#include <bit>
#include <chrono>
#include <thread>

#include "engine/train/ranks.h"

using namespace trainer;

namespace {

float value(int rank, std::int64_t i) { return static_cast<float>((rank + 1) * 1000 + i % 977); }

std::vector<int> everyone(int world) {
  std::vector<int> members;
  for (int rank = 0; rank < world; ++rank) members.push_back(rank);
  return members;
}

std::uint16_t bf16(float x) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16); }

}  // namespace

TEST_CASE("all_reduce sums over ranks, whether slices divide or not") {
  for (int world : {1, 2, 3, 4, 7})
    for (std::int64_t n : {1, 5, 4096, 100003}) {
      std::vector<std::vector<float>> data(static_cast<std::size_t>(world));
      run_ranks(world, [&](Communicator& communicator) {
        auto& mine = data[static_cast<std::size_t>(communicator.rank())];
        for (std::int64_t i = 0; i < n; ++i) mine.push_back(value(communicator.rank(), i));
        const auto group = communicator.group(everyone(world));
        communicator.all_reduce(*group, DType::f32, mine.data(), n);
        CHECK(communicator.bytes_sent() == 2 * n * 4 * (world - 1) / world);
      });
      bool right = true;
      for (std::int64_t i = 0; i < n; ++i) {
        float sum = 0;
        for (int rank = 0; rank < world; ++rank) sum += value(rank, i);  // whole numbers below 2^24: exact
        for (const auto& one : data) right = right && one[static_cast<std::size_t>(i)] == sum;
      }
      CHECK(right);
    }
}

TEST_CASE("all_reduce of bf16 sums in f32 and rounds once") {
  // 256 + 1 + 1 is 258 in f32; in bf16 each 1 alone would be lost.
  const float parts[3] = {256, 1, 1};
  std::vector<std::uint16_t> out(3);
  run_ranks(3, [&](Communicator& communicator) {
    std::uint16_t mine = bf16(parts[communicator.rank()]);
    const auto group = communicator.group(everyone(3));
    communicator.all_reduce(*group, DType::bf16, &mine, 1);
    out[static_cast<std::size_t>(communicator.rank())] = mine;
  });
  for (std::uint16_t bits : out) CHECK(bits == bf16(258));
}

TEST_CASE("reduce_scatter then all_gather is all_reduce, in sub-groups too") {
  const int world = 6;
  const std::int64_t n = 3 * 1000;
  run_ranks(world, [&](Communicator& communicator) {
    const int rank = communicator.rank(), parity = rank % 2;
    const auto group = communicator.group({parity, parity + 2, parity + 4});
    std::vector<double> data(n), slice(n / 3), whole(n);
    for (std::int64_t i = 0; i < n; ++i) data[static_cast<std::size_t>(i)] = value(rank, i);
    communicator.reduce_scatter(*group, DType::f64, data.data(), slice.data(), n);
    communicator.all_gather(*group, slice.data(), whole.data(), n / 3 * 8);
    communicator.all_reduce(*group, DType::f64, data.data(), n);
    CHECK(whole == data);
  });
}

TEST_CASE("broadcast gives everyone what the first has") {
  run_ranks(4, [&](Communicator& communicator) {
    std::vector<int> data(1001, communicator.rank() == 0 ? 42 : 0);
    const auto group = communicator.group(everyone(4));
    communicator.broadcast(*group, data.data(), 1001 * 4);
    CHECK(data == std::vector<int>(1001, 42));
  });
}

TEST_CASE("exchange passes data around a ring without waiting on itself") {
  const int world = 5;
  run_ranks(world, [&](Communicator& communicator) {
    const int rank = communicator.rank(), next = (rank + 1) % world, previous = (rank + world - 1) % world;
    for (int round = 0; round < 20; ++round) {
      std::vector<int> out(333, rank * 100 + round), in(333);
      const Communicator::Part send{next, out.data(), 333 * 4}, receive{previous, in.data(), 333 * 4};
      communicator.exchange({&send, 1}, {&receive, 1});
      CHECK(in == std::vector<int>(333, previous * 100 + round));
    }
  });
}

TEST_CASE("a rank that fails releases the others, and its own error is what is thrown") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH_AS(run_ranks(4,
                                 [&](Communicator& communicator) {
                                   if (communicator.rank() == 2) throw std::runtime_error("disk full");
                                   communicator.barrier();
                                 }),
                       "disk full", std::runtime_error);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
}
