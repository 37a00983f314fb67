// Families whose kernels are still to be written: asking for one is an error. A line goes when its kernels come.
#include "kernels/cuda/families.h"
#include "kernels/cuda/libraries.h"
#include "kernels/prepare.h"

namespace trainer::kernels::cuda {
namespace {

[[noreturn]] Prepared missing(const Signature& signature) { fail_check("kernel", __FILE__, __LINE__, "no CUDA kernel yet for " + describe(signature)); }

}  // namespace

cudnnContext* open_cudnn() { return nullptr; }
void close_cudnn(cudnnContext*) {}

Prepared prepare_embedding(const Signature& signature, const Context&) { missing(signature); }
Prepared prepare_embedding_grad(const Signature& signature, const Context&) { missing(signature); }
Prepared prepare_positions(const Signature& signature, const Context&) { missing(signature); }
Prepared prepare_positions_grad(const Signature& signature, const Context&) { missing(signature); }

}  // namespace trainer::kernels::cuda
