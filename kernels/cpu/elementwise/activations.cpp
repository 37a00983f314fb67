// Activations and their gradients: one pass, cut over elements.
#include "kernels/activations.h"

#include "kernels/cpu/elementwise/elementwise_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

constexpr std::int64_t kGrain = 64;  // elements: whole cache lines for each thread

Function function_of(const Signature& signature) {
  const bool gelu = signature.op == Op::gelu || signature.op == Op::gelu_grad;
  return {signature.op, gelu && !gelu_is_tanh(signature), activation_number(signature)};
}

// The activation of a glu.
Function gate_function(const Signature& signature) {
  const bool gelu = glu_is_gelu(signature);
  return {gelu ? Op::gelu : Op::silu, gelu && !gelu_is_tanh(signature)};
}

}  // namespace

Prepared prepare_activation(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  expect_alike(signature, {0, 1});
  const bool bf16 = expect_compute_dtype(signature, 0);
  const Function f = function_of(signature);
  const std::int64_t count = signature.operands[0].elements();
  const int threads = threads_for(2 * signature.operands[0].bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, unary);
  CHECK(loop(f, bf16, nullptr, nullptr, 0, 0), describe(signature) + " has no loop");
  return make_kernel([=](const Call& call) {
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(f, bf16, operand<void>(call, 0), operand<void>(call, 1), begin, end);
    });
  });
}

Prepared prepare_activation_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  expect_alike(signature, {0, 1, 2});
  const bool bf16 = expect_compute_dtype(signature, 0);
  const Function f = function_of(signature);
  const std::int64_t count = signature.operands[0].elements();
  const int threads = threads_for(3 * signature.operands[0].bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, binary);
  CHECK(loop(f, bf16, nullptr, nullptr, nullptr, 0, 0), describe(signature) + " has no loop");
  return make_kernel([=](const Call& call) {
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(f, bf16, operand<void>(call, 0), operand<void>(call, 1), operand<void>(call, 2), begin, end);
    });
  });
}

Prepared prepare_glu(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  expect_alike(signature, {0, 1, 2});
  const bool bf16 = expect_compute_dtype(signature, 0);
  const Function f = gate_function(signature);
  const std::int64_t count = signature.operands[0].elements();
  const int threads = threads_for(3 * signature.operands[0].bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, glu);
  return make_kernel([=](const Call& call) {
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(f, bf16, operand<void>(call, 0), operand<void>(call, 1), operand<void>(call, 2), begin, end);
    });
  });
}

Prepared prepare_glu_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 5);
  expect_alike(signature, {0, 1, 2, 3, 4});
  const bool bf16 = expect_compute_dtype(signature, 0);
  const Function f = gate_function(signature);
  const std::int64_t count = signature.operands[0].elements();
  const int threads = threads_for(5 * signature.operands[0].bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, glu_grad);
  return make_kernel([=](const Call& call) {
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(f, bf16, operand<void>(call, 0), operand<void>(call, 1), operand<void>(call, 2), operand<void>(call, 3),
           operand<void>(call, 4), begin, end);
    });
  });
}

}  // namespace trainer::kernels::cpu
