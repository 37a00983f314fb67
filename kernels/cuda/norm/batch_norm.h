// What the planner and the kernels of batch norm agree about: the parts in which a channel is summed.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trainer::kernels::cuda {

/// Enough for two blocks a multiprocessor; of a sample at least.
inline std::int64_t batch_norm_parts(std::int64_t channels, std::int64_t samples, int units) {
  const std::int64_t wanted = (2 * std::max(1, units) + channels - 1) / std::max<std::int64_t>(1, channels);
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, samples));
}

}  // namespace trainer::kernels::cuda
