// linear and its gradients on the CPU: each a matrix product (gemm/) over views of the operands.
//
//   y  = x·Wᵀ    A = x  by rows      B = W  by columns
//   dx = dy·W    A = dy by rows      B = W  by rows
//   dW = dyᵀ·x   A = dy by columns   B = x  by rows
#include "kernels/linear.h"

#include "engine/core/op_record.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/gemm/column_sums.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/runtime/make_kernel.h"

namespace trainer::kernels::cpu {
namespace {

using gemm::Order;
using gemm::Problem;

const TensorDesc& desc(const Signature& s, int index) { return s.operands[static_cast<std::size_t>(index)]; }

bool is_f32(const Signature& s, int index) { return !expect_compute_dtype(s, index); }

void refuse_fp8(const Signature& s) {
  CHECK(text(s, "fp8") == "none", describe(s) + ": no product on the CPU is of fp8");
}
void refuse_what_gpus_have(const Signature& s) {
  CHECK(!flag(s, "gelu"), describe(s) + ": products on the CPU have no activation as an epilogue");
  refuse_fp8(s);
}

void expect_same_dtype(const Signature& s, int first, int last) {
  for (int i = first + 1; i <= last; ++i)
    if (desc(s, i).dtype != desc(s, first).dtype) refuse_dtypes(s, "one compute dtype for all but parameter gradients");
}

Problem linear_problem(const Signature& s) {
  using At = LinearOperands;
  const bool bias = flag(s, "bias"), residual = flag(s, "residual");
  const int y = At::y(bias, residual);
  refuse_what_gpus_have(s);
  expect_operands(s, static_cast<std::size_t>(y) + 1);
  expect_same_dtype(s, At::x, y);
  const Shape& x = desc(s, At::x).shape;
  Problem p;
  p.m = x.rows(), p.k = x[-1], p.n = desc(s, y).shape[-1];
  if (residual) expect_operand(s, At::residual(bias), desc(s, y).dtype, desc(s, y).elements());
  p.inputs_are_f32 = p.c_is_f32 = is_f32(s, At::x);
  p.lda = p.k, p.ldb = p.k, p.ldc = p.n;
  p.b_order = Order::columns;
  return p;
}

Problem grad_input_problem(const Signature& s) {
  using At = LinearGradInputOperands;
  const bool residual = flag(s, "residual");
  const int dx = At::dx(residual);
  refuse_what_gpus_have(s);
  expect_operands(s, static_cast<std::size_t>(dx) + 1);
  expect_same_dtype(s, At::dy, dx);
  const Shape& dy = desc(s, At::dy).shape;
  if (residual) expect_operand(s, At::residual, desc(s, dx).dtype, desc(s, dx).elements());
  Problem p;
  p.m = dy.rows(), p.k = dy[-1], p.n = desc(s, dx).shape[-1];
  p.inputs_are_f32 = p.c_is_f32 = is_f32(s, At::dy);
  p.lda = p.k, p.ldb = p.n, p.ldc = p.n;
  p.b_order = Order::rows;
  return p;
}

Problem grad_weight_problem(const Signature& s) {
  using At = LinearGradWeightOperands;
  const bool bias = flag(s, "bias");
  refuse_fp8(s);
  expect_operands(s, static_cast<std::size_t>(bias ? At::dbias : At::dweight) + 1);
  expect_same_dtype(s, At::x, At::dy);
  if (bias) expect_same_dtype(s, At::dweight, At::dbias);
  const Shape &x = desc(s, At::x).shape, &dy = desc(s, At::dy).shape;
  Problem p;
  p.m = dy[-1], p.k = dy.rows(), p.n = x[-1];
  p.inputs_are_f32 = is_f32(s, At::x);
  p.c_is_f32 = is_f32(s, At::dweight);
  p.lda = p.m, p.ldb = p.n, p.ldc = p.n;
  p.a_order = Order::columns, p.b_order = Order::rows;
  return p;
}

std::int64_t workspace_of(const Problem& problem, const Context& c) {
  return gemm::workspace_bytes(problem, gemm::method_for(problem, c.isa), c.isa, c.threads);
}

}  // namespace

Prepared prepare_linear(const Signature& s, const Context& c) {
  const bool bias = flag(s, "bias"), partial = flag(s, "partial"), residual = flag(s, "residual");
  return make_kernel([c, bias, partial, residual, problem = linear_problem(s)](const Call& call) {
    using At = LinearOperands;
    Problem p = problem;
    p.a = operand<void>(call, At::x);
    p.b = operand<void>(call, At::weight);
    p.bias = bias && !(partial && call.origin != 0) ? operand<void>(call, At::bias) : nullptr;
    p.addend = residual ? operand<void>(call, At::residual(bias)) : nullptr;
    p.c = operand<void>(call, At::y(bias, residual));
    gemm::run(p, gemm::method_for(p, c.isa), c.isa, c.threads, call.workspace);
  });
}

Prepared prepare_linear_grad_input(const Signature& s, const Context& c) {
  const bool residual = flag(s, "residual");
  return make_kernel([c, residual, problem = grad_input_problem(s)](const Call& call) {
    using At = LinearGradInputOperands;
    Problem p = problem;
    p.a = operand<void>(call, At::dy);
    p.b = operand<void>(call, At::weight);
    p.addend = residual ? operand<void>(call, At::residual) : nullptr;
    p.c = operand<void>(call, At::dx(residual));
    gemm::run(p, gemm::method_for(p, c.isa), c.isa, c.threads, call.workspace);
  });
}

Prepared prepare_linear_grad_weight(const Signature& s, const Context& c) {
  const bool bias = flag(s, "bias"), accumulate = accumulates(s);
  return make_kernel([c, bias, accumulate, problem = grad_weight_problem(s)](const Call& call) {
    using At = LinearGradWeightOperands;
    Problem p = problem;
    p.a = operand<void>(call, At::dy);
    p.b = operand<void>(call, At::x);
    p.c = operand<void>(call, At::dweight);
    p.addend = accumulate ? p.c : nullptr;
    gemm::run(p, gemm::method_for(p, c.isa), c.isa, c.threads, call.workspace);
    if (bias)
      gemm::sum_columns({p.k, p.m, p.a, p.inputs_are_f32, operand<void>(call, At::dbias), p.c_is_f32, accumulate},
                        c.isa, c.threads);
  });
}

std::int64_t linear_workspace(const Signature& s, const Context& c) {
  switch (s.op) {
    case Op::linear:
      return workspace_of(linear_problem(s), c);
    case Op::linear_grad_input:
      return workspace_of(grad_input_problem(s), c);
    case Op::linear_grad_weight:
      return workspace_of(grad_weight_problem(s), c);
    default:
      UNREACHABLE(describe(s) + " is no linear op");
  }
}

}  // namespace trainer::kernels::cpu
