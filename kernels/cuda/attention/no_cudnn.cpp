// In place of cudnn_attention.cpp and cudnn_graph.cpp in a build that has no cuDNN.
#include "kernels/cuda/attention/cudnn_attention.h"
#include "kernels/cuda/runtime/libraries.h"

namespace trainer::kernels::cuda {

cudnnContext* open_cudnn() { return nullptr; }
void close_cudnn(cudnnContext*) {}

std::unique_ptr<FusedAttention> fused_attention(cudnnContext*, DType, const AttentionArguments&, std::int64_t,
                                                std::string& refused) {
  refused = "this build has no cuDNN";
  return nullptr;
}

}  // namespace trainer::kernels::cuda
