// How the weight gradient of a convolution is cut: known to its kernel and to planning, which counts the workspace. No
// CUDA here.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trainer::kernels::cuda {

/// A block makes 32 × 64 of the [out, in · kh · kw] weights; its sum over n · oh · ow places is cut into parts until
/// some 256 blocks work, but no part has less than 512 places. A function of shapes alone: results do not depend on the
/// device.
inline std::int64_t conv2d_weight_parts(std::int64_t out, std::int64_t per_filter, std::int64_t places) {
  const std::int64_t tiles = (out + 31) / 32 * ((per_filter + 63) / 64);
  return std::max<std::int64_t>(1, std::min(256 / tiles, places / 512));
}

}  // namespace trainer::kernels::cuda
