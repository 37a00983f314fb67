// The middle of what was measured, and how far measurements lie from it.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/cost/machine_model.h"

namespace trainer::tools {

/// The median, and half the interquartile range as a share of it. REQUIRES: not empty.
inline cost::Figure median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
  };
  const double median = at(0.5);
  return {median, median > 0 ? (at(0.75) - at(0.25)) / 2 / median : 0};
}

}  // namespace trainer::tools
