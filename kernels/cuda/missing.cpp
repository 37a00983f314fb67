// cuDNN: no kernel is made of it yet, and a context has none.
#include "kernels/cuda/libraries.h"

namespace trainer::kernels::cuda {

cudnnContext* open_cudnn() { return nullptr; }
void close_cudnn(cudnnContext*) {}

}  // namespace trainer::kernels::cuda
