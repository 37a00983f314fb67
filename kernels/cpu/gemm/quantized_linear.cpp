// quantized_linear and its gradient on the CPU: the products of linear.cpp, whose B is decoded block by block into the
// scratch where other weights are widened (quantized_blocks.h). W is never there as a whole.
#include "engine/core/op_record.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/quantized.h"
#include "kernels/quantized_sizes.h"

namespace trainer::kernels::cpu {
namespace {

using gemm::Order;
using gemm::Problem;

Problem problem_of(const Signature& s) {
  const QuantizedSizes z = quantized_sizes(s);
  const bool forward = s.op == Op::quantized_linear;
  Problem p;
  p.inputs_are_f32 = p.c_is_f32 = !expect_compute_dtype(s, 0);
  p.m = z.rows, p.n = forward ? z.out : z.in, p.k = forward ? z.in : z.out;
  p.lda = p.k, p.ldc = p.n;
  p.b_order = forward ? Order::columns : Order::rows;
  p.quantized = {.blocks = z.blocks, .nf4 = z.nf4};
  return p;
}

/// The parts of W stand behind the first operand in both ops.
void take_weight(const Call& call, Problem& p) {
  using At = QuantizedLinearOperands;
  p.quantized.codes = operand<unsigned char>(call, At::codes);
  p.quantized.scales = operand<unsigned char>(call, At::scales);
  p.quantized.groups = p.quantized.nf4 ? operand<float>(call, At::groups) : nullptr;
}

void run(const Problem& p, const Context& c, void* workspace) {
  gemm::run(p, gemm::method_for(p, c.isa), c.isa, c.threads, workspace);
}

}  // namespace

Prepared prepare_quantized_linear(const Signature& s, const Context& c) {
  const bool bias = flag(s, "bias"), partial = flag(s, "partial");
  return make_kernel([c, bias, partial, problem = problem_of(s)](const Call& call) {
    using At = QuantizedLinearOperands;
    Problem p = problem;
    const bool nf4 = p.quantized.nf4;
    take_weight(call, p);
    p.a = operand<void>(call, At::x);
    p.bias = bias && !(partial && call.origin != 0) ? operand<void>(call, At::bias(nf4)) : nullptr;
    p.c = operand<void>(call, At::y(nf4, bias));
    run(p, c, call.workspace);
  });
}

Prepared prepare_quantized_linear_grad_input(const Signature& s, const Context& c) {
  return make_kernel([c, problem = problem_of(s)](const Call& call) {
    using At = QuantizedLinearGradInputOperands;
    Problem p = problem;
    take_weight(call, p);
    p.a = operand<void>(call, At::dy);
    p.c = operand<void>(call, At::dx(p.quantized.nf4));
    run(p, c, call.workspace);
  });
}

std::int64_t quantized_linear_workspace(const Signature& s, const Context& c) {
  const Problem problem = problem_of(s);
  return gemm::workspace_bytes(problem, gemm::method_for(problem, c.isa), c.isa, c.threads);
}

}  // namespace trainer::kernels::cpu
