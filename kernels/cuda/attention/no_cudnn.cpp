// In place of cudnn_attention.cpp in a build without cuDNN, its frontend, or NVRTC, which the frontend links.
#include "kernels/cuda/attention/cudnn_attention.h"
#include "kernels/cuda/runtime/libraries.h"

namespace trainer::kernels::cuda {

cudnnContext* open_cudnn() { return nullptr; }
void close_cudnn(cudnnContext*) {}

std::unique_ptr<FusedAttention> fused_attention(const FusedDevice&, DType, const AttentionArguments&, std::int64_t,
                                                std::string& refused) {
  refused = "this build has no cuDNN with its frontend";
  return nullptr;
}

std::unique_ptr<FusedAttention> fused_attention_grad(const FusedDevice& device, DType dtype,
                                                     const AttentionArguments& sizes, std::int64_t workspace_limit,
                                                     std::string& refused) {
  return fused_attention(device, dtype, sizes, workspace_limit, refused);
}

}  // namespace trainer::kernels::cuda
