// Moments: when a stage of a schedule can hold the most activations. A stage repeats itself, so of the moments of all
// its actions only a few differ, and of those most are less than another whatever the chunks weigh.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cost/profile.h"
#include "engine/plan/strategy.h"

namespace trainer::cost {

/// While an action of `chunk` runs: of each chunk of the stage, the passes whose activations are alive, and of those
/// the ones whose backward pass has run its input part alone.
struct Moment {
  struct Held {
    int chunk = 0, alive = 0, handed = 0;
    bool operator==(const Held&) const = default;
  };
  int chunk = 0;
  std::vector<Held> held;
};

/// Of each stage those that no other exceeds.
std::vector<std::vector<Moment>> fullest_moments(const Schedule& schedule);

/// Bytes of activations of a stage at the fullest of its moments. `chunks`: sums of all chunks.
std::int64_t peak_bytes(const std::vector<Moment>& moments, const std::vector<Piece>& chunks);

}  // namespace trainer::cost
