// Pairs: what two micro-batches cost that go through the model side by side.
#pragma once

#include "engine/cost/profile.h"

namespace trainer::cost {

/// The profile of a pair (AssembleOptions::together), of `one` micro-batch's. While one of them sends, the other
/// computes, and takes `slowdown` times as long meanwhile. Bytes of the batch's fields stay those of one.
Profile in_pairs(const Profile& one, double slowdown);

}  // namespace trainer::cost
