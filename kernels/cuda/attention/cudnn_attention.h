// attention by cuDNN's fused kernels. A build without cuDNN has no_cudnn.cpp instead, which refuses. No header of cuDNN
// here.
//
// The forward pass alone: what cuDNN 9.19 offers for the gradient either adds to dq in an order that differs from run
// to run, or takes batch · heads · seq² · 2 bytes of workspace (plans made for compute capabilities 8.0, 9.0 and 10.0
// say so), and neither may be.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <string>

#include "kernels/cuda/attention/attention.h"

struct cudnnContext;

namespace trainer::kernels::cuda {

/// The score of a key that is masked, for a library of `version` (91000 is 9.10.0): −∞ is right since 9.10. Before, the
/// library took the least finite number (cudnn-frontend, utils/attn_score_modifiers.h).
constexpr float masked_score(std::size_t version) {
  return version < 91000 ? std::numeric_limits<float>::lowest() : -std::numeric_limits<float>::infinity();
}

class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  /// `at.q` and `at.k` come rotated; the workspace has the bytes that preparation was given.
  virtual void run(const Call& call, const AttentionArguments& at, void* workspace) = 0;
};

/// For arguments of these sizes and strides (addresses do not count), or null, and then `refused` says why.
std::unique_ptr<FusedAttention> fused_attention(cudnnContext* handle, DType dtype, const AttentionArguments& sizes,
                                                std::int64_t workspace_bytes, std::string& refused);

}  // namespace trainer::kernels::cuda
