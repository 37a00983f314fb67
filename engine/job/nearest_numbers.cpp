#include "engine/job/nearest_numbers.h"

#include <fmt/format.h>

#include <algorithm>

namespace trainer {

std::string nearest_divisors(std::int64_t of, std::int64_t value) {
  // Divisors are found among the numbers up to the root, which is at most a million.
  std::int64_t below = 1, above = of;
  for (std::int64_t i = 1; i * i <= of; ++i) {
    if (of % i != 0) continue;
    for (const std::int64_t divisor : {i, of / i}) {
      if (divisor < value) below = std::max(below, divisor);
      if (divisor > value) above = std::min(above, divisor);
    }
  }
  if (value > of || below == above) return fmt::format("{}", value > of ? of : below);
  return fmt::format("{} or {}", below, above);
}

std::string nearest_multiples(std::int64_t of, std::int64_t value) {
  const std::int64_t below = value / of * of;
  return below > 0 ? fmt::format("{} or {}", below, below + of) : fmt::format("{}", of);
}

}  // namespace trainer
