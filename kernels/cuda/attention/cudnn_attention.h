// attention and its gradient by cuDNN's fused kernels, through cudnn-frontend. A build without them has no_cudnn.cpp
// instead, which refuses. No header of cuDNN here.
//
// Plans are deterministic: engines that add to dq in an order that differs from run to run are left out. Those that are
// left write the gradients of the scores to memory, except on compute capability 10.x, where dq is added to in order
// (engine/core/fused_attention.h says how many bytes that takes, and cuts the work into pieces so that they are few).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/attention/attention.h"

struct cudnnContext;

namespace trainer::kernels::cuda {

/// What plans are made for: the device of a handle, or one that is described, which needs no GPU.
struct FusedDevice {
  cudnnContext* handle = nullptr;
  std::string description;  ///< without a handle: CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION
  int capability = 0;       ///< 90 for 9.0
  int units = 0;            ///< streaming multiprocessors
};

class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  virtual std::int64_t workspace_bytes() const = 0;
  /// q and k come rotated; of the gradient, dq and dk leave so. The workspace is 256-byte aligned.
  virtual void run(const Call& call, const AttentionArguments& at, void* workspace) = 0;
};

/// For arguments of these sizes and strides (addresses do not count), within so many bytes of workspace; or null, and
/// then `refused` says why.
std::unique_ptr<FusedAttention> fused_attention(const FusedDevice& device, DType dtype, const AttentionArguments& sizes,
                                                std::int64_t workspace_limit, std::string& refused);
/// The same of the gradient.
std::unique_ptr<FusedAttention> fused_attention_grad(const FusedDevice& device, DType dtype,
                                                     const AttentionArguments& sizes, std::int64_t workspace_limit,
                                                     std::string& refused);

}  // namespace trainer::kernels::cuda
