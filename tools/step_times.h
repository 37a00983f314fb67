// A step's times: what was measured, set beside what the plan's order allows, and split into computing, communicating and waiting.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/train/train.h"

namespace trainer::tools {

/// An instruction of a rank's step.
struct Spot {
  int rank = 0;
  std::int32_t instruction = 0;
};

/// For each rank and instruction of the step those on other ranks that it meets: the other members of its collective, the peers of its
/// exchange. Matched by order: the k-th collective of a group, the k-th message from one rank to another.
class Meetings {
 public:
  explicit Meetings(const Plan& plan);
  const std::vector<Spot>& of(int rank, std::size_t instruction) const { return met_[static_cast<std::size_t>(rank)][instruction]; }
  struct Message {
    Spot from, to;
  };
  const std::vector<Message>& messages() const { return messages_; }

 private:
  std::vector<std::vector<std::vector<Spot>>> met_;
  std::vector<Message> messages_;
};

/// The step played by the plan alone: an instruction starts once its stream is free, what it waits for is done and, if it communicates,
/// all that it meets are ready. Kernels take time by their FLOPs and bytes, messages by their bytes, at the two rates that `measured`
/// had on the whole. So the two differ where a kernel is slower than its share, and where ranks waited for a processor.
std::vector<RankTrace> planned_times(const Plan& plan, const Meetings& meetings, const std::vector<RankTrace>& measured);

/// Where a rank's step went, in ns; they add up to `step`.
struct RankTimes {
  std::int64_t step = 0;     ///< from the first begin to the last end of all ranks
  std::int64_t compute = 0;  ///< a kernel runs
  std::int64_t exposed = 0;  ///< none, and bytes are on their way: what it meets is there too
  std::int64_t waiting = 0;  ///< none of these: a pipeline's bubble, ranks that are not equally fast, copies, gaps
};
std::vector<RankTimes> measure(const Plan& plan, const Meetings& meetings, const std::vector<RankTrace>& traces);

}  // namespace trainer::tools
