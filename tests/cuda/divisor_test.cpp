// Division by a number that the host knows against the processor's own.
#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/runtime/device.cuh"

#undef CHECK  // the program's; the rest is doctest's
#include <doctest/doctest.h>

namespace trainer::kernels::cuda {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

void check(std::int64_t n, std::int64_t by) {
  const Quotient quotient = Divisor(by)(n);
  CAPTURE(n);
  CAPTURE(by);
  CHECK(quotient.whole == n / by);
  CHECK(quotient.rest == n % by);
}

// Near multiples of it a quotient that is a little wrong shows.
void check_near_multiples(std::int64_t by, std::int64_t multiple) {
  if (multiple > kMost / by) return;
  for (const std::int64_t off : {-1, 0, 1})
    if (const std::int64_t n = multiple * by; (off <= 0 || n < kMost) && n + off >= 0) check(n + off, by);
}

}  // namespace

TEST_CASE("a divisor divides as the processor does") {
  std::mt19937_64 random(7);
  std::vector<std::int64_t> divisors{1, 2, 3, 5, 7, 11, 641, 768, 50257, 50304, kMost, kMost - 1};
  for (int bits = 1; bits < 63; ++bits)
    for (const std::int64_t off : {-1, 0, 1}) divisors.push_back((std::int64_t{1} << bits) + off);
  for (int i = 0; i < 300; ++i) divisors.push_back(static_cast<std::int64_t>(random() >> (1 + random() % 62)) + 1);
  for (const std::int64_t by : divisors) {
    if (by < 1) continue;
    CHECK(Divisor(by).by() == by);
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, kMost - 1, kMost}) check(n, by);
    for (const std::int64_t multiple : {std::int64_t{1}, std::int64_t{2}, kMost / by})
      check_near_multiples(by, multiple);
    for (int i = 0; i < 20; ++i) {
      check(static_cast<std::int64_t>(random() >> (1 + random() % 62)), by);
      check_near_multiples(by, static_cast<std::int64_t>(random() % (static_cast<std::uint64_t>(kMost / by) + 1)));
    }
  }
}

}  // namespace trainer::kernels::cuda
