// quantized_linear and its gradient: the weight is decoded into the workspace, then the product is that of linear.cpp.
// So a launch has one weight in the compute dtype, for as long as it runs.
#include <algorithm>
#include <array>

#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/gemm/dequantize.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/target.h"
#include "kernels/linear.h"
#include "kernels/quantized.h"
#include "kernels/quantized_sizes.h"

namespace trainer::kernels::cuda {
namespace {

/// The signature of the product with a plain weight.
Signature plain_signature(const Signature& s, const QuantizedSizes& z) {
  const bool forward = s.op == Op::quantized_linear;
  Signature plain{forward ? Op::linear : Op::linear_grad_input, {}, {s.operands.front()}};
  plain.operands.push_back({z.compute, Shape{z.out, z.in}});
  if (forward) {
    plain.attributes.set("bias", flag(s, "bias"));
    plain.attributes.set("partial", flag(s, "partial"));
    if (flag(s, "bias")) plain.operands.push_back({z.compute, Shape{z.out}});
  }
  plain.operands.push_back(s.operands.back());
  return plain;
}

class QuantizedProduct final : public Kernel {
 public:
  QuantizedProduct(const Signature& s, const Context& context)
      : sizes_(quantized_sizes(s)), weight_bytes_(dequantized_bytes(s)) {
    const Signature plain = plain_signature(s, sizes_);
    product_ =
        s.op == Op::quantized_linear ? prepare_linear(plain, context) : prepare_linear_grad_input(plain, context);
  }

  void run(const Call& call) override {
    using At = QuantizedLinearOperands;  // the parts stand behind the first operand in both ops
    void* const weight = call.workspace;
    const std::size_t parts = sizes_.nf4 ? 3 : 2;
    dequantize(call, sizes_, operand<void>(call, At::codes), operand<void>(call, At::scales),
               sizes_.nf4 ? operand<void>(call, At::groups) : nullptr, weight);
    std::array<void*, 4> operands{call.operands[0], weight};  // and, where there is one, a bias; and the result
    const auto rest = call.operands.subspan(1 + parts);
    std::ranges::copy(rest, operands.begin() + 2);
    Call product = call;
    product.operands = std::span(operands).first(2 + rest.size());
    product.workspace = static_cast<char*>(call.workspace) + weight_bytes_;
    product_->run(product);
  }

 private:
  QuantizedSizes sizes_;
  std::int64_t weight_bytes_;
  Prepared product_;
};

}  // namespace

Prepared prepare_quantized_linear(const Signature& s, const Context& context) {
  expect_compute_dtype(s, 0);
  return std::make_unique<QuantizedProduct>(s, context);
}

Prepared prepare_quantized_linear_grad_input(const Signature& s, const Context& context) {
  expect_compute_dtype(s, 0);
  return std::make_unique<QuantizedProduct>(s, context);
}

}  // namespace trainer::kernels::cuda
