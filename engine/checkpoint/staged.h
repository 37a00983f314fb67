// How much of a file is in memory at a time: what reading and verifying checkpoints take beside the tensors' own places.
#pragma once

#include <cstdint>

namespace trainer::checkpoint {

/// Of a file that is hashed.
inline constexpr std::int64_t kHashedBytes = std::int64_t{1} << 20;
/// Rows of a tensor that lie near each other in a file are read together.
inline constexpr std::int64_t kRowsTogetherBytes = std::int64_t{1} << 20;

}  // namespace trainer::checkpoint
