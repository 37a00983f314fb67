// Places: where a run of a program is. A run issues the program's list, and each loop once for each pass; a place is an
// instruction of the list in one of those passes. Its number is the index that the instruction has in the program
// written out (plan/loop.h), so reports of a run and a printed, written-out plan use the same numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/plan/loop.h"
#include "engine/plan/plan.h"

namespace trainer {

struct Place {
  std::int32_t instruction = 0;  ///< index in Program::instructions
  std::int32_t pass = 0;         ///< over the loop that it is in; outside of loops 0
  friend bool operator==(const Place&, const Place&) = default;
};

inline std::int32_t number_of(const Program& program, const Place& place) {
  return number_of(program.loops, place.instruction, place.pass);
}

/// The place with that number. REQUIRES: 0 <= number < its length.
inline Place place_at(std::span<const Loop> loops, std::int32_t number) {
  for (const Loop& loop : loops) {
    if (number < loop.first) break;
    const std::int32_t pass = (number - loop.first) / loop.size();
    if (pass < loop.times) return {number - pass * loop.size(), pass};
    number -= (loop.times - 1) * loop.size();
  }
  return {number, 0};
}
inline Place place_at(const Program& program, std::int32_t number) { return place_at(program.loops, number); }

/// A list of which some parts are gone over several times: a program's instructions, or those of one thread.
struct Passes {
  std::int32_t size = 0;
  std::vector<Loop> loops{};
};

inline Passes passes_of(const Program& program) {
  return {static_cast<std::int32_t>(program.instructions.size()), program.loops};
}

/// Calls visit(index, pass) in the order of a run, until it returns false.
template <typename Visit>
void for_each_in_run(const Passes& passes, const Visit& visit) {
  const auto each = [&](std::int32_t first, std::int32_t last, std::int32_t pass) {
    for (std::int32_t i = first; i < last; ++i)
      if (!visit(i, pass)) return false;
    return true;
  };
  std::int32_t at = 0;
  for (const Loop& loop : passes.loops) {
    if (!each(at, loop.first, 0)) return;
    for (std::int32_t pass = 0; pass < loop.times; ++pass)
      if (!each(loop.first, loop.last, pass)) return;
    at = loop.last;
  }
  each(at, passes.size, 0);
}

}  // namespace trainer
