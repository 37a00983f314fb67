// Every rank of a plan, played: the independent truth for the proof of communication, which plays one rank a role.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer::tests {

/// What keeps the ranks from running to the end of each program if every communication is a rendezvous; empty if
/// nothing does. REQUIRES: accesses lie inside their buffers, waits point back.
std::vector<std::string> play_all_ranks(const Plan& plan);

}  // namespace trainer::tests
