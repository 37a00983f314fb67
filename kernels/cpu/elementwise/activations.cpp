// Activations and their gradients: one pass, cut over elements.
#include "kernels/activations.h"

#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/elementwise/elementwise_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

constexpr std::int64_t kGrain = 64;  // elements: whole cache lines for each thread

Unary unary_for(const Signature& signature) {
  switch (signature.op) {
    case Op::gelu: return gelu_is_tanh(signature) ? Unary::gelu_tanh : Unary::gelu_erf;
    case Op::relu: return Unary::relu;
    case Op::silu: return Unary::silu;
    case Op::tanh: return Unary::tanh;
    case Op::sigmoid: return Unary::sigmoid;
    default: UNREACHABLE(describe(signature) + " is no activation");
  }
}

Binary gradient_for(const Signature& signature) {
  switch (signature.op) {
    case Op::gelu_grad: return gelu_is_tanh(signature) ? Binary::gelu_tanh_grad : Binary::gelu_erf_grad;
    case Op::relu_grad: return Binary::relu_grad;
    case Op::silu_grad: return Binary::silu_grad;
    case Op::tanh_grad: return Binary::tanh_grad;
    case Op::sigmoid_grad: return Binary::sigmoid_grad;
    default: UNREACHABLE(describe(signature) + " is no gradient of an activation");
  }
}

}  // namespace

Prepared prepare_activation(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  expect_alike(signature, {0, 1});
  const bool bf16 = expect_compute_dtype(signature, 0);
  const Unary which = unary_for(signature);
  const std::int64_t count = signature.operands[0].elements();
  const int threads = threads_for(2 * signature.operands[0].bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, unary);
  return make_kernel([=](const Call& call) {
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(which, bf16, operand<void>(call, 0), operand<void>(call, 1), begin, end);
    });
  });
}

Prepared prepare_activation_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  expect_alike(signature, {0, 1, 2});
  const bool bf16 = expect_compute_dtype(signature, 0);
  const Binary which = gradient_for(signature);
  const std::int64_t count = signature.operands[0].elements();
  const int threads = threads_for(3 * signature.operands[0].bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, binary);
  return make_kernel([=](const Call& call) {
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(which, bf16, operand<void>(call, 0), operand<void>(call, 1), operand<void>(call, 2), begin, end);
    });
  });
}

}  // namespace trainer::kernels::cpu
