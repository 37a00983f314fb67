// A step's times as they were measured: who met whom, and what was computing, communicating and waiting.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/train/train.h"

namespace trainer::report {

/// An instruction of a rank's step.
struct Spot {
  int rank = 0;
  std::int32_t instruction = 0;
};

/// For each rank and instruction of the step those on other ranks that it meets: the other members of its collective,
/// the peers of its exchange. Matched by order: the k-th collective of a group, the k-th message from one rank to
/// another.
class Meetings {
 public:
  explicit Meetings(const Plan& plan);
  const std::vector<Spot>& of(int rank, std::size_t instruction) const {
    return met_[static_cast<std::size_t>(rank)][instruction];
  }
  struct Message {
    Spot from, to;
  };
  const std::vector<Message>& messages() const { return messages_; }

 private:
  std::vector<std::vector<std::vector<Spot>>> met_;
  std::vector<Message> messages_;
};

/// When, on the clock of all ranks, `rank` has begun an instruction and so have all that it meets: from then on bytes
/// can move.
std::int64_t begin_together(const Meetings& meetings, const std::vector<RankTrace>& traces, const RankTrace& rank,
                            std::size_t instruction);

/// Where a rank's step went, in ns; they add up to `step`.
struct RankTimes {
  std::int64_t step = 0;     ///< from the first begin to the last end of all ranks
  std::int64_t compute = 0;  ///< a kernel runs
  std::int64_t exposed = 0;  ///< none, and bytes are on their way: what it meets is there too
  std::int64_t waiting = 0;  ///< none of these: a pipeline's bubble, ranks that are not equally fast, copies, gaps
};
std::vector<RankTimes> measure(const Plan& plan, const Meetings& meetings, const std::vector<RankTrace>& traces);

}  // namespace trainer::report
