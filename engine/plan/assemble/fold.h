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

/// What became of a program.
struct Folded {
  bool alike = true;              ///< false: its rounds are not, and the role is then of no use
  double memory = 1;              ///< alive at once, with the parts of all rings, over the same of the list
  std::int64_t instructions = 0;  ///< of the list
};

/// Makes instructions [first, last) of each of the marks a loop. `successions` of every buffer of the role.
Folded fold(Role& role, std::size_t program, const std::vector<RoundMarks>& marks, const Rounds& rounds,
            const std::vector<Succession>& successions);

/// Takes away buffers that no instruction, unit or scalar names.
void drop_unused_buffers(Role& role);

/// Whether every wait of a loop is for an instruction as far back as that of the round before, and at most a round
/// back. REQUIRES: order is derived.
bool waits_alike(const Role& role);

}  // namespace trainer
