// Traffic: what a plan sends, read off its instructions. Bytes are those of bandwidth-optimal rings, which is how
// communicators count too (Communicator::bytes_sent): a rank of n sends 2 (n − 1)/n of the b bytes that an all-reduce
// sums, and (n − 1)/n of the larger side of a reduce-scatter, all-gather or all-to-all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// Communication of one kind over the same axes, by one rank in one run of a program.
struct Traffic {
  std::string axis;        ///< "replicate", or several joined by "+"
  std::string collective;  ///< name_of its kind, or "send"
  std::int64_t count = 0;
  std::int64_t bytes = 0;  ///< sent
};

/// What a rank of stage `role` sends in one run of `program`, by axis and collective; empty if there is no such
/// program. Groups of one rank send nothing and are not listed.
std::vector<Traffic> traffic_of(const Plan& plan, std::size_t role = 0, ProgramKind program = ProgramKind::step,
                                int part = 0);

/// Bytes of all of it.
std::int64_t bytes_of(const std::vector<Traffic>& traffic);

}  // namespace trainer
