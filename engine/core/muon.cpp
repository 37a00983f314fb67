// Figures of Muon.
#include "engine/core/muon.h"

#include <algorithm>
#include <cmath>

namespace trainer {

double muon_adjustment(std::int64_t rows, std::int64_t cols, bool matches_adamw) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols);
  return matches_adamw ? 0.2 * std::sqrt(std::max(r, c)) : std::sqrt(std::max(1.0, r / c));
}

double newton_schulz_flops(std::int64_t rows, std::int64_t cols, std::int64_t steps) {
  const auto s = static_cast<double>(std::min(rows, cols)), l = static_cast<double>(std::max(rows, cols));
  return static_cast<double>(steps) * (4 * s * s * l + 2 * s * s * s);
}

}  // namespace trainer
