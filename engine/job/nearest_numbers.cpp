// How divisors are found: by trial up to the square root.
#include "engine/job/nearest_numbers.h"

#include <fmt/format.h>

#include <algorithm>

namespace trainer {

// Those up to the root, which is at most a million, and what each leaves.
std::vector<std::int64_t> divisors(std::int64_t of) {
  std::vector<std::int64_t> small, large;
  for (std::int64_t d = 1; d * d <= of; ++d) {
    if (of % d != 0) continue;
    small.push_back(d);
    if (d != of / d) large.push_back(of / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

std::string nearest_divisors(std::int64_t of, std::int64_t value) {
  constexpr std::size_t kMostListed = 12;
  const std::vector<std::int64_t> all = divisors(of);
  if (all.size() > 1 && all.size() <= kMostListed)
    return fmt::format("{} or {}", fmt::join(all.begin(), all.end() - 1, ", "), all.back());
  std::int64_t below = 1, above = of;
  for (const std::int64_t divisor : all) {
    if (divisor < value) below = std::max(below, divisor);
    if (divisor > value) above = std::min(above, divisor);
  }
  if (value > of || below == above) return fmt::format("{}", value > of ? of : below);
  return fmt::format("{} or {}", below, above);
}

std::string nearest_multiples(std::int64_t of, std::int64_t value) {
  const std::int64_t below = value / of * of;
  return below > 0 ? fmt::format("{} or {}", below, below + of) : fmt::format("{}", of);
}

}  // namespace trainer
