// Staging: host memory that a rank takes beside its plan's allocation while its weights are drawn, loaded or saved.
// Tensors go through it a chunk at a time, so that it does not grow with the model.
#pragma once

#include <cstdint>

#include "engine/plan/plan.h"

namespace trainer {

/// Elements of a tensor that are moved at a time.
inline constexpr std::int64_t kStagedElements = std::int64_t{1} << 18;

/// Bytes, at most, of the rank that takes most. What is known of each tensor (its name, its place in a file) is not
/// counted: some hundred bytes a tensor.
struct Staging {
  std::int64_t draw = 0;  ///< every thread draws a chunk
  std::int64_t load =
      0;  ///< of a checkpoint that this plan wrote; 8 bytes an element more where its floats are of another dtype
  std::int64_t save_sharded = 0;
  std::int64_t save_full = 0;  ///< of rank 0: the part of a tensor that is written, and what of it came from all ranks
};

/// `threads`: that draw at once on a rank.
Staging staging_of(const Plan& plan, int threads);

}  // namespace trainer
