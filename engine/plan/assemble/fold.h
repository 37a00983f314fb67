// Folding: a program of a few rounds becomes one with loops. A round that loops must do what the round before it
// did, for later micro-batches and in other buffers; those buffers become rings.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/assemble/rounds.h"
#include "engine/plan/plan.h"

namespace trainer {

/// Buffers that succeed one another: what one of a line is in a round, a later one is in the next. -1: of none.
struct Succession {
  std::int32_t line = -1;
  std::int32_t number = 0;  ///< in the line: ascending with the micro-batches, or with time
};

/// Where a program's round begins that is to be a loop, the round before it, and what follows: instructions.
struct RoundMarks {
  std::int32_t before = -1, first = -1, last = -1;
};

/// `no`: the rounds are not alike; the role is then of no use. `costly`: there are loops, whose rings take so much more
/// memory that a list is worth its time.
enum class Folded : std::uint8_t { no, costly, yes };

/// Makes instructions [first, last) of each of the marks a loop. `successions` of every buffer of the role.
Folded fold(Role& role, std::size_t program, const std::vector<RoundMarks>& marks, const Rounds& rounds,
            const std::vector<Succession>& successions);

/// Takes away buffers that no instruction, unit or scalar names.
void drop_unused_buffers(Role& role);

/// Whether every wait of a loop is for an instruction as far back as that of the round before, and at most a round
/// back. REQUIRES: order is derived.
bool waits_alike(const Role& role);

}  // namespace trainer
