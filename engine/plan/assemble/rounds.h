// Rounds: how a schedule repeats itself. Behind its warm-up every stage does the same again and again for later
// micro-batches, until it cools down. What is planned is a schedule with a few rounds; of one of them the program makes
// a loop.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/plan/strategy.h"

namespace trainer {

struct Rounds {
  Schedule schedule;  ///< with all but one of the rounds that the loop stands for left out; micro-batches numbered on
  int left = 0;       ///< micro-batches of `schedule`
  int micro_batches = 0;  ///< of a round
  int times = 1;          ///< rounds that the loop stands for
  std::vector<std::size_t> first,
      size;  ///< [stage] actions of the round that loops: the first of them in the stage's list, how many
};

/// The shortest rounds of a schedule, with `margin` rounds at least before and behind the one that loops. Nothing if
/// the stages do not repeat themselves alike, or too little is saved.
std::optional<Rounds> find_rounds(const Schedule& schedule, int micro_batches, int margin);

}  // namespace trainer
