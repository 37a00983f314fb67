// Quantizing first, where it is asked for, then one product.
#include "kernels/cuda/gemm/linear_product.h"

#include <cstddef>
#include <utility>

#include "engine/core/check.h"
#include "kernels/cuda/gemm/fp8_quantize.h"
#include "kernels/cuda/runtime/runtime.h"

namespace trainer::kernels::cuda {

LinearProduct::LinearProduct(const ProductSpec& spec, std::unique_ptr<Product> product)
    : spec_(spec), product_(std::move(product)) {}

std::unique_ptr<LinearProduct> LinearProduct::make(const ProductSpec& spec, const Context& context) {
  ProductSpec multiplied = spec;
  if (spec.fp8 != Fp8Scales::none) {
    CHECK(spec.operands == DType::bf16, "products in fp8 are of bf16 operands");
    multiplied.left_transposed = false, multiplied.right_transposed = true;
  }
  std::unique_ptr<Product> product = Product::make(multiplied, context);
  if (!product) return nullptr;
  return std::unique_ptr<LinearProduct>(new LinearProduct(spec, std::move(product)));
}

void LinearProduct::run(const Call& call, ProductOperands operands) {
  if (spec_.fp8 != Fp8Scales::none) {
    const Fp8Workspace at(spec_.rows, spec_.columns, spec_.inner, spec_.fp8, spec_.square_right);
    std::byte* const start = static_cast<std::byte*>(operands.workspace) + round_up(spec_.workspace_bytes, 256);
    float* const largest = reinterpret_cast<float*>(start + at.largest);
    quantize_fp8(call, at.left, spec_.left_code, spec_.left_transposed, operands.left, start + at.left_codes,
                 start + at.left_scales, largest);
    quantize_fp8(call, at.right, Fp8Code::e4m3, !spec_.right_transposed, operands.right, start + at.right_codes,
                 start + at.right_scales, largest);
    operands.left = start + at.left_codes, operands.right = start + at.right_codes;
    operands.left_scales = start + at.left_scales, operands.right_scales = start + at.right_scales;
  }
  product_->run(operands, stream_of(call));
}

}  // namespace trainer::kernels::cuda
