// What the workspace of a ring's block holds (block.h): planning and launches read the same offsets. No CUDA in it.
#pragma once

#include <cstdint>

#include "engine/core/signature.h"

namespace trainer::kernels::cuda {

/// Offsets of what lies in the workspace of a block. Empty runs have the offset of the next.
struct BlockWorkspace {
  std::int64_t q = 0, k = 0;            ///< turned copies, where there is a rotation
  std::int64_t o = 0;                   ///< forward: f32, where the result is in 16 bits
  std::int64_t o_new = 0, lse_new = 0;  ///< forward: of a pair of chunks
  std::int64_t dq = 0, dk = 0;          ///< backward: f32, still turned
  std::int64_t dq_new = 0, dk_new = 0, dv_new = 0, lse = 0, delta = 0;  ///< backward: of a pair of chunks
  std::int64_t bytes = 0;

  explicit BlockWorkspace(const Signature& signature);
};

}  // namespace trainer::kernels::cuda
