// StreamClocks: what every stream of a program knows of every other, from the waits alone; and whether that goes on
// alike in every pass over a loop. A part of the induction over loops (loop.h), which the assembler asks as well before
// it takes a loop.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// By stream: for each the last instruction of every stream that has ended for it.
using StreamClocks = std::array<StreamClock, kNumStreams>;
/// By stream: whether a loop has it.
using ActiveStreams = std::array<bool, kNumStreams>;

/// Whether what every stream knows of every other has moved on by a pass from `found`, at the loop's first instruction,
/// to `now`, at its end. If so, of each stream up to where what is known of it stays from pass to pass, or -1, and no
/// comparison comes out differently in a later pass. `ended`: the clocks at the ends of all instructions up to there.
std::optional<StreamClock> stays_behind(const Loop& loop, const ActiveStreams& active, const StreamClocks& found,
                                        const StreamClocks& now, const std::vector<StreamClock>& ended);

/// Whether that holds of every loop of the program. REQUIRES: before every loop lies a round of its own.
bool streams_settle(const Program& program);

}  // namespace trainer
