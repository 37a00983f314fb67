// LinearProduct: a product of linear's operands, which lie in the compute dtype. In fp8 it quantizes both into the
// workspace first, with the dim that is summed over innermost, and multiplies the codes: left is what changes with the
// tokens, right of e4m3 the weight, or for the weight's gradient the input.
#pragma once

#include <memory>
#include <optional>

#include "kernels/cuda/gemm/products.h"
#include "kernels/kernel.h"

namespace trainer::kernels::cuda {

class LinearProduct {
 public:
  /// As Product::make. With `fp8` the operands are bf16, may lie either way, and the launch's workspace has the codes
  /// and scales (Fp8Workspace) from spec.workspace_bytes on, at a multiple of 256.
  static std::unique_ptr<LinearProduct> make(const ProductSpec& spec, const Context& context);

  void run(const Call& call, ProductOperands operands);

 private:
  LinearProduct(const ProductSpec& spec, std::unique_ptr<Product> product);

  ProductSpec spec_;  // of the operands as they lie
  std::unique_ptr<Product> product_;
};

}  // namespace trainer::kernels::cuda
