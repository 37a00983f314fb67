// Memory over a program by category: the curve that `trainer plan --html` draws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer::report {

/// Live bytes of a role over one program, persistent ones included; gaps between buffers are none. Point p holds from
/// instruction `at[p]` to the one before `at[p + 1]`. Where there are more instructions than points a point is the
/// fullest of them.
struct MemoryCurve {
  std::vector<std::int32_t> at;
  std::array<std::vector<std::int64_t>, kNumCategories> live;
  std::int32_t peak = -1;  ///< first instruction at which most is alive
  std::int64_t peak_bytes = 0;
};

/// REQUIRES: `program` is the role's, `most_points` > 0.
MemoryCurve memory_curve(const Role& role, const Program& program, std::size_t most_points);

}  // namespace trainer::report
