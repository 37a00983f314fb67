// Layout of units: which parameters of a stage form one, in which order they lie in its flat buffers, and how they are
// cut.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/assemble/options.h"

namespace trainer {

/// The least multiple of `step` that is not below `elements`.
constexpr std::int64_t round_up(std::int64_t elements, std::int64_t step) {
  return (elements + step - 1) / step * step;
}

/// The units of each stage, without their buffers. A group of AssembleOptions::groups becomes one unit for each set of
/// chunks that reads the same of its parameters: so a unit's gradients are complete with one chunk's backward pass, and
/// a parameter that several chunks share has a unit of its own. Parameters of another compute dtype or optimizer are
/// apart too.
std::vector<std::vector<Unit>> layout_units(const Graph& graph, const AssembleOptions& options);

}  // namespace trainer
