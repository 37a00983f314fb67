// What stages hand each other, and when each side issues it, such that no order of actions can deadlock even if a send ends only
// with its receive: a stage may have to take an activation long before it reads it (under looped_bfs the last stage is done
// with chunk p − 1 of the first micro-batch while the first stage still sends others to the second).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/strategy.h"

namespace trainer::strategies {

/// One result that passes from the stage of one chunk to the stage of the next, or back. Between chunks of one stage there are none.
struct Transfer {
  enum class Kind : std::uint8_t { activation, gradient };
  Kind kind = Kind::activation;
  int micro_batch = 0;
  int chunk = 0;  ///< that reads it: an activation of chunk − 1, a gradient of chunk + 1
  int peer = 0;   ///< the stage at the other end
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// Issued together at one point of a stage's list, and so unable to wait on each other.
struct TransferPoint {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
};

/// [stage][i]: what the stage issues just before its action i; [stage][number of actions]: after the last. A send stands right
/// after its action; a receive at the first point at which its sender, were all stages in step, has sent it, and never later than
/// its reader. Between two stages both ends issue in one order. REQUIRES: the schedule ends (`simulate` finds no deadlock).
std::vector<std::vector<TransferPoint>> place_transfers(const Schedule& schedule);

}  // namespace trainer::strategies
