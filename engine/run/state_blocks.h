// Optimizer states in blocks (kernels/state_codes.h), on the host: where a rank's memory meets the f32 values of
// checkpoints. Invariant: values that were decoded are encoded to the same codes and scales. So what a checkpoint held
// is what a run goes on with.
#pragma once

#include <cstdint>

namespace trainer {

/// The values of `count` codes. `first`: the place of the first one in its block, whose scale is the first of `scales`.
void decode_blocks(bool has_sign, const unsigned char* codes, const float* scales, std::int64_t first,
                   std::int64_t count, float* values);

/// Codes and scales of `count` values, which begin with a block; the last block may be short. Without a sign what is
/// below 0 becomes 0. REQUIRES: they are finite.
void encode_blocks(bool has_sign, const float* values, std::int64_t count, unsigned char* codes, float* scales);

}  // namespace trainer
