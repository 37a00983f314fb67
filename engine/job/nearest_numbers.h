// Divisors, and the numbers next to a wrong one that would be right, for messages about what does not divide.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

/// The divisors of `of`, ascending. REQUIRES: 1 ≤ of ≤ 10^12.
std::vector<std::int64_t> divisors(std::int64_t of);

/// "6 or 12": the divisors of `of` next to `value`, from below and above. REQUIRES: 1 ≤ of ≤ 10^12, value ≥ 1.
std::string nearest_divisors(std::int64_t of, std::int64_t value);

/// "248 or 256": the multiples of `of` next to `value`, from below (if above 0) and above. REQUIRES: of ≥ 1, value ≥ 1.
std::string nearest_multiples(std::int64_t of, std::int64_t value);

}  // namespace trainer
