// The libraries that kernels are made of: their handles, opened with a device and closed with it.
#pragma once

struct cublasLtContext;
struct cudnnContext;

namespace trainer::kernels::cuda {

cublasLtContext* open_products();
void close_products(cublasLtContext* handle);

/// Null in a build without cuDNN.
cudnnContext* open_cudnn();
void close_cudnn(cudnnContext* handle);

}  // namespace trainer::kernels::cuda
