// Ranks as threads of this process: one communicator each; the first real failure ends them all.
#pragma once

#include <functional>

#include "engine/run/communicator.h"

namespace trainer {

/// Calls run(communicator) for every rank of the world, each on a thread of its own (a single rank on the caller's). Returns when all
/// have ended; then throws what the first rank that failed of itself threw.
void run_ranks(int world_size, const std::function<void(Communicator&)>& run);

}  // namespace trainer
