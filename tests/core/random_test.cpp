// The counter-based generator against the published vectors of Random123 (kat_vectors, philox4x32 10).
#include "engine/core/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

using namespace trainer;

TEST_CASE("philox gives the published words") {
  CHECK(philox(0, 0, 0) == std::array<std::uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  const std::uint64_t ones = ~std::uint64_t{0};
  CHECK(philox(ones, ones, ones) == std::array<std::uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
}

TEST_CASE("uniform numbers fill (-1, 1) evenly and do not depend on how a range is cut") {
  std::vector<float> whole(100003), parts(whole.size());
  fill_uniform(random_key(7, "weight"), 0, 0, static_cast<std::int64_t>(whole.size()), whole.data());
  for (std::size_t at = 0; at < parts.size(); at += 1777)
    fill_uniform(random_key(7, "weight"), 0, static_cast<std::int64_t>(at),
                 static_cast<std::int64_t>(std::min<std::size_t>(1777, parts.size() - at)), parts.data() + at);
  CHECK(whole == parts);
  double mean = 0, square = 0, largest = 0;
  std::vector<double> tenths(10, 0);
  for (float x : whole) {
    mean += x, square += static_cast<double>(x) * x, largest = std::max(largest, std::abs(static_cast<double>(x)));
    tenths[static_cast<std::size_t>((x + 1) * 5)] += 1;
  }
  const double n = static_cast<double>(whole.size());
  CHECK(largest < 1);
  CHECK(largest > 0.999);
  CHECK(std::abs(mean / n) < 4 * std::sqrt(1.0 / 3 / n));               // four standard errors
  CHECK(std::abs(square / n - 1.0 / 3) < 4 * std::sqrt(4.0 / 45 / n));  // the variance of x² is 1/5 − 1/9
  for (double count : tenths) CHECK(std::abs(count - n / 10) < 4 * std::sqrt(n * 0.09));
}

TEST_CASE("normals are standard and do not depend on how a range is cut") {
  std::vector<float> whole(100003), parts(whole.size());
  fill_normal(random_key(7, "weight"), 0, 0, static_cast<std::int64_t>(whole.size()), whole.data());
  for (std::size_t at = 0; at < parts.size(); at += 1777)
    fill_normal(random_key(7, "weight"), 0, static_cast<std::int64_t>(at),
                static_cast<std::int64_t>(std::min<std::size_t>(1777, parts.size() - at)), parts.data() + at);
  CHECK(whole == parts);
  double mean = 0, square = 0;
  for (float x : whole) mean += x, square += static_cast<double>(x) * x;
  const double n = static_cast<double>(whole.size());
  CHECK(std::abs(mean / n) < 4 / std::sqrt(n));  // four standard errors
  CHECK(std::abs(square / n - 1) < 4 * std::sqrt(2.0 / n));
}
