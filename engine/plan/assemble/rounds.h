// Rounds: how a schedule repeats itself. Behind its warm-up every stage does the same again and again for later
// micro-batches, until it cools down; or it takes all micro-batches through one pass of a chunk after another. What is
// planned is a schedule with a few rounds; of one of them, or of one of each such pass, the program makes a loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/plan/strategy.h"

namespace trainer {

struct Rounds {
  /// Actions of a stage that repeat one round: those from `begin` to the next one's; the loop is [first, first + size).
  struct Repeated {
    std::size_t begin = 0, first = 0, size = 0;
  };

  Schedule schedule;      ///< with all but one of the rounds that a loop stands for left out; micro-batches numbered on
  int left = 0;           ///< micro-batches of `schedule`, each of its numbers `together` of them
  int micro_batches = 0;  ///< of a round
  int times = 1;          ///< rounds that a loop stands for
  std::vector<std::vector<Repeated>> loops;  ///< [stage], in order

  /// The loop whose work an action begins, repeats or ends.
  std::int32_t loop_of(std::size_t stage, std::size_t action) const {
    std::int32_t loop = 0;
    for (std::size_t i = 1; i < loops[stage].size(); ++i)
      if (action >= loops[stage][i].begin) loop = static_cast<std::int32_t>(i);
    return loop;
  }
};

/// The shortest rounds of a schedule, with `margin` rounds at least before and behind those that loop. Nothing if
/// the stages do not repeat themselves alike, or too little is saved. `together`: micro-batches that one number of
/// `schedule` stands for (AssembleOptions).
std::optional<Rounds> find_rounds(const Schedule& schedule, int micro_batches, int margin, int together = 1);

}  // namespace trainer
