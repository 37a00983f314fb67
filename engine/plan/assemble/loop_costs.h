// LoopCosts: whether the loops of a plan are worth their memory. Parts of rings are nobody else's, even where a
// schedule cools down and has use for fewer, so a loop needs more memory than a list. A list that is short is planned
// in little time, and gives way to loops that cost next to nothing. Loops in place of long lists may cost some, and as
// much as they like in a stage that needs hardly more than the fullest of those with cheaper ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "engine/plan/assemble/fold.h"
#include "engine/plan/plan.h"

namespace trainer {

class LoopCosts {
 public:
  /// Of each stage what became of it, which outlives this object.
  explicit LoopCosts(const std::vector<Folded>& folded) : folded_(folded) {
    constexpr std::int64_t kLongList = 10'000;  // instructions of a stage, in the mean
    std::int64_t instructions = 0;
    for (const Folded& one : folded) instructions += one.instructions;
    is_long_ = instructions >= kLongList * std::ssize(folded);
  }

  /// Whether the list would be long.
  bool is_long() const { return is_long_; }

  /// A stage whose loops cost too much. REQUIRES: where the list is long, the memory of `plan` is planned.
  std::optional<int> too_costly(const Plan& plan) const {
    double fullest = 0;
    for (std::size_t i = 0; is_long_ && i < folded_.size(); ++i)
      if (!costly(i)) fullest = std::max(fullest, static_cast<double>(plan.roles[i].total_bytes));
    for (std::size_t i = 0; i < folded_.size(); ++i)
      if (costly(i) && (!is_long_ || static_cast<double>(plan.roles[i].total_bytes) > kMost * fullest))
        return static_cast<int>(i);
    return {};
  }

 private:
  static constexpr double kMost = 1.05, kMostOfLong = 1.25;  // times the memory of the list
  bool costly(std::size_t stage) const { return folded_[stage].memory > (is_long_ ? kMostOfLong : kMost); }

  const std::vector<Folded>& folded_;
  bool is_long_ = false;
};

}  // namespace trainer
