// Both goals are dynamic programs over prefixes: the best split of pieces 0 to i into k chunks, from the best into k
// − 1.
#include "strategies/pipeline/split.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/check.h"

namespace trainer::strategies {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Whole numbers, of which even the square of the sum is exact: blocks that are alike stay alike, so that rounding never
// decides where a model is cut.
std::vector<double> prefix_sums(const std::vector<double>& costs) {
  constexpr int kBits = 26;
  double total = 0;
  for (double cost : costs) {
    CHECK(cost >= 0, "a piece of negative cost");
    total += cost;
  }
  const int shift = total > 0 ? kBits - 1 - std::ilogb(total) : 0;
  std::vector<double> sums{0};
  for (double cost : costs) sums.push_back(sums.back() + std::round(std::ldexp(cost, shift)));
  return sums;
}

// The smallest largest chunk. Of the two sides of a last cut the left one's best grows with the cut's place and the
// right one's sum falls: the best cut is where they cross.
double smallest_maximum(const std::vector<double>& sums, std::size_t num_chunks) {
  const std::size_t n = sums.size() - 1;
  std::vector<double> best = sums;  // one chunk
  for (std::size_t k = 2; k <= num_chunks; ++k) {
    std::vector<double> next(n + 1, kInfinity);
    for (std::size_t end = k; end <= n; ++end) {
      std::size_t low = k - 1;
      std::size_t high = end - 1;
      while (low < high) {
        const std::size_t middle = (low + high) / 2;
        if (best[middle] >= sums[end] - sums[middle])
          high = middle;
        else
          low = middle + 1;
      }
      next[end] = std::max(best[low], sums[end] - sums[low]);
      if (low > k - 1) next[end] = std::min(next[end], std::max(best[low - 1], sums[end] - sums[low - 1]));
    }
    best = std::move(next);
  }
  return best[n];
}

// The least sum of squares of chunks of at most `limit` each.
std::vector<int> most_even(const std::vector<double>& sums, std::size_t num_chunks, double limit) {
  const std::size_t n = sums.size() - 1;
  std::vector<double> best(n + 1, kInfinity);
  best[0] = 0;
  std::vector<std::vector<int>> begins(num_chunks, std::vector<int>(n + 1, -1));  // of chunk k, when it ends there
  for (std::size_t k = 0; k < num_chunks; ++k) {
    std::vector<double> next(n + 1, kInfinity);
    for (std::size_t end = k + 1; end <= n; ++end) {
      for (std::size_t begin = end; begin-- > k;) {
        const double sum = sums[end] - sums[begin];
        if (sum > limit) break;
        if (const double squares = best[begin] + sum * sum; squares <= next[end] && squares < kInfinity) {
          next[end] = squares;
          begins[k][end] = static_cast<int>(begin);
        }
      }
    }
    best = std::move(next);
  }
  std::vector<int> chosen(num_chunks);
  std::size_t end = n;
  for (std::size_t k = num_chunks; k-- > 0;) {
    CHECK(begins[k][end] >= 0, "no split within the least maximum");
    chosen[k] = begins[k][end];
    end = static_cast<std::size_t>(chosen[k]);
  }
  return chosen;
}

}  // namespace

std::vector<int> split_by_cost(const std::vector<double>& costs, int num_chunks) {
  CHECK(num_chunks >= 1 && static_cast<std::size_t>(num_chunks) <= costs.size(), "more chunks than pieces");
  const std::vector<double> sums = prefix_sums(costs);
  const auto chunks = static_cast<std::size_t>(num_chunks);
  return most_even(sums, chunks, smallest_maximum(sums, chunks));
}

std::vector<int> split_uniform(int num_pieces, int num_chunks) {
  CHECK(num_chunks >= 1 && num_chunks <= num_pieces, "more chunks than pieces");
  std::vector<int> begins;
  for (int chunk = 0; chunk < num_chunks; ++chunk)
    begins.push_back(static_cast<int>(static_cast<long long>(chunk) * num_pieces / num_chunks));
  return begins;
}

}  // namespace trainer::strategies
