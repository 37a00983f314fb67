// Staging: host memory that a rank takes beside its plan's allocation while its weights are drawn, loaded or saved.
// Tensors go through it a chunk at a time, so that it does not grow with the model.
#pragma once

#include <cstdint>

#include "engine/plan/plan.h"
#include "engine/train/weights.h"

namespace trainer {

/// Elements of a tensor that are moved at a time.
inline constexpr std::int64_t kStagedElements = std::int64_t{1} << 18;

/// Bytes, at most, of the rank that takes most. What is known of each tensor (its name, its place in a file) is not
/// counted: some hundred bytes a tensor.
struct Staging {
  std::int64_t draw = 0;  ///< every thread draws a chunk
  std::int64_t load =
      0;  ///< of a checkpoint that this plan wrote; 8 bytes an element more where its floats are of another dtype

  /// Of a format: what a save takes in the step; where files are written behind it, that and the copy of all that the
  /// rank writes, which stays for the next save.
  struct Save {
    std::int64_t in_step = 0;
    std::int64_t copying = 0, copy = 0;
  };
  Save sharded;
  Save full;  ///< of rank 0: the part of a tensor that is written, and what of it came from all ranks
};

/// `threads`: that draw at once on a rank. `saved`: of the parameters.
Staging staging_of(const Plan& plan, int threads, Saved saved = Saved::all);

/// Bytes of a checkpoint's tensors, all files together, whatever its format.
std::int64_t checkpoint_bytes(const Plan& plan, Saved saved);
/// Tensors of a checkpoint, states among them.
std::int64_t checkpoint_tensors(const Plan& plan, Saved saved);

}  // namespace trainer
