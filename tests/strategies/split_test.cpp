// Splitting models into chunks, against every possible split.
#include "strategies/pipeline/split.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

using namespace trainer::strategies;

namespace {

struct Score {
  double largest = 0;
  double squares = 0;
  bool operator<(const Score& other) const {
    return largest != other.largest ? largest < other.largest : squares < other.squares;
  }
  bool operator==(const Score&) const = default;
};

Score score(const std::vector<double>& costs, const std::vector<int>& begins) {
  Score result;
  for (std::size_t k = 0; k < begins.size(); ++k) {
    const auto end = k + 1 < begins.size() ? costs.begin() + begins[k + 1] : costs.end();
    const double sum = std::accumulate(costs.begin() + begins[k], end, 0.0);
    result.largest = std::max(result.largest, sum);
    result.squares += sum * sum;
  }
  return result;
}

// Calls visit(begins) for every split into non-empty chunks.
template <typename Visit>
void for_each_split(int pieces, int chunks, std::vector<int>& begins, Visit&& visit) {
  if (static_cast<int>(begins.size()) == chunks) return visit(begins);
  for (int next = begins.empty() ? 0 : begins.back() + 1; next < pieces; ++next) {
    begins.push_back(next);
    for_each_split(pieces, chunks, begins, visit);
    begins.pop_back();
    if (begins.empty()) return;
  }
}

}  // namespace

TEST_CASE("a split by cost is the best of all splits") {
  std::mt19937 random(7);  // NOLINT: the same costs every time
  for (int trial = 0; trial < 600; ++trial) {
    const int pieces = 1 + static_cast<int>(random() % 11);
    const int chunks = 1 + static_cast<int>(random() % static_cast<unsigned>(pieces));
    std::vector<double> costs;  // whole numbers: sums are exact
    for (int i = 0; i < pieces; ++i) costs.push_back(static_cast<double>(random() % (trial % 3 == 0 ? 3 : 50)));
    const std::vector<int> begins = split_by_cost(costs, chunks);
    REQUIRE(static_cast<int>(begins.size()) == chunks);
    REQUIRE(begins.front() == 0);
    REQUIRE(std::adjacent_find(begins.begin(), begins.end(), std::greater_equal<>()) == begins.end());
    REQUIRE(begins.back() < pieces);

    Score best{1e9, 0};
    std::vector<int> first_best;
    std::vector<int> prefix;
    for_each_split(pieces, chunks, prefix, [&](const std::vector<int>& other) {
      if (const Score s = score(costs, other); s < best) {
        best = s;
        first_best = other;
      }
    });
    CHECK(score(costs, begins) == best);
  }
}

TEST_CASE("equal costs split evenly, and a heavy last piece stands alone") {
  CHECK(split_by_cost(std::vector<double>(12, 1.0), 4) == std::vector<int>{0, 3, 6, 9});
  CHECK(split_by_cost({1, 1, 1, 1, 1, 1, 6}, 3) == std::vector<int>{0, 3, 6});
  CHECK(split_by_cost({0, 0, 0}, 3) == std::vector<int>{0, 1, 2});
  CHECK(split_by_cost({0.1, 0.2, 0.3}, 1) == std::vector<int>{0});
}

TEST_CASE("costs that are no whole numbers split within their least maximum") {
  std::mt19937 random(11);  // NOLINT
  std::vector<double> costs;
  for (int i = 0; i < 1500; ++i) costs.push_back(static_cast<double>(random()) * 1.1e-3);
  const std::vector<int> begins = split_by_cost(costs, 64);
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  const double heaviest = *std::max_element(costs.begin(), costs.end());
  CHECK(score(costs, begins).largest <= total / 64 + heaviest);
  CHECK(score(costs, begins).largest >= total / 64 * (1 - 1e-12));  // some 1500 additions of relative error 2^-53
}

TEST_CASE("a uniform split differs by at most one piece") {
  for (int pieces = 1; pieces < 40; ++pieces)
    for (int chunks = 1; chunks <= pieces; ++chunks) {
      std::vector<int> begins = split_uniform(pieces, chunks);
      REQUIRE(begins.front() == 0);
      begins.push_back(pieces);
      for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
        CHECK(begins[i + 1] - begins[i] >= pieces / chunks);
        CHECK(begins[i + 1] - begins[i] <= (pieces + chunks - 1) / chunks);
      }
    }
}

TEST_CASE("blocks that are alike are cut alike, however large their costs are") {
  for (const double scale : {1.0, 3e15 / 7, 1e17 / 3}) {
    std::vector<double> costs(127, scale);
    costs.front() = 0.1 * scale;
    costs.back() = 0.7 * scale;
    std::vector<double> small(127, 1.0);
    small.front() = 0.1;
    small.back() = 0.7;
    for (const int chunks : {2, 16, 48, 96}) CHECK(split_by_cost(costs, chunks) == split_by_cost(small, chunks));
  }
}
