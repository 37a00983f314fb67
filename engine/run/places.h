// Places: where a run of a program is. A run issues the program's list, and its loop once for each pass; a place is an
// instruction of the list in one of those passes. Its number is the index that the instruction has in the program
// written out (plan/loop.h), so reports of a run and a printed, written-out plan use the same numbers.
#pragma once

#include <cstdint>

#include "engine/plan/loop.h"
#include "engine/plan/plan.h"

namespace trainer {

struct Place {
  std::int32_t instruction = 0;  ///< index in Program::instructions
  std::int32_t pass = 0;         ///< before the loop 0, behind it that of the last pass
  friend bool operator==(const Place&, const Place&) = default;
};

inline std::int32_t number_of(const Program& program, const Place& place) {
  return place.instruction + place.pass * program.loop.size();
}

/// The place with that number. REQUIRES: 0 <= number < program.length().
inline Place place_at(const Program& program, std::int32_t number) {
  const Loop& loop = program.loop;
  if (number < loop.first || !program.loops()) return {number, 0};
  const std::int32_t pass = (number - loop.first) / loop.size();
  if (pass < loop.times) return {number - pass * loop.size(), pass};
  return {number - (loop.times - 1) * loop.size(), loop.times - 1};
}

/// A list of which a part [first, last) is gone over `times` times: a program's instructions, or those of one thread.
struct Passes {
  std::int32_t size = 0, first = 0, last = 0;
  std::int32_t times = 1;
};

inline Passes passes_of(const Program& program) {
  return {static_cast<std::int32_t>(program.instructions.size()), program.loop.first, program.loop.last,
          program.loop.times};
}

/// Calls visit(index, pass) in the order of a run, until it returns false.
template <typename Visit>
void for_each_in_run(const Passes& passes, const Visit& visit) {
  const auto each = [&](std::int32_t first, std::int32_t last, std::int32_t pass) {
    for (std::int32_t i = first; i < last; ++i)
      if (!visit(i, pass)) return false;
    return true;
  };
  if (!each(0, passes.first, 0)) return;
  for (std::int32_t pass = 0; pass < passes.times; ++pass)
    if (!each(passes.first, passes.last, pass)) return;
  each(passes.last, passes.size, passes.times - 1);
}

}  // namespace trainer
