// add, mul, scale, sum_leading and bias_grad.
#include "kernels/arithmetic.h"

#include "engine/core/op_record.h"
#include "kernels/bias_grad.h"
#include "kernels/cpu/elementwise/elementwise_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/reduction/reduce_loops.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

constexpr std::int64_t kGrain = 64;  // elements

/// Raises Bug unless `small` is `large` or its last dims.
void expect_last_dims(const Signature& signature, const Shape& large, const Shape& small) {
  bool fits = small.rank() <= large.rank();
  for (int dim = 1; fits && dim <= small.rank(); ++dim) fits = small[-dim] == large[-dim];
  CHECK(fits, describe(signature) + ": one shape must be the other's last dims");
}

}  // namespace

Prepared prepare_add_mul(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  expect_alike(signature, {0, 2});
  const bool bf16 = expect_compute_dtype(signature, 0);
  const TensorDesc &a = signature.operands[0], &b = signature.operands[1];
  expect_operand(signature, 1, a.dtype, b.elements());
  expect_last_dims(signature, a.shape, b.shape);
  const Function f{signature.op};
  const std::int64_t count = a.elements(), period = b.elements();
  const int threads = threads_for(2 * a.bytes() + b.bytes(), context.threads);
  const auto plain = CHOOSE_BY_ISA_OR_BF16(context.isa, binary);
  const auto repeated = CHOOSE_BY_ISA_OR_BF16(context.isa, binary_repeated);
  return make_kernel([=](const Call& call) {
    const void *left = operand<void>(call, 0), *right = operand<void>(call, 1);
    void* y = operand<void>(call, 2);
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      if (period == count) {
        plain(f, bf16, left, right, y, begin, end);
        return;
      }
      repeated(f, bf16, left, right, y, period, begin, end);
    });
  });
}

Prepared prepare_scale(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  expect_alike(signature, {0, 1});
  const bool bf16 = expect_compute_dtype(signature, 0);
  const std::int64_t count = signature.operands[0].elements();
  const float factor = static_cast<float>(real(signature, "factor"));
  const int threads = threads_for(2 * signature.operands[0].bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, scale);
  return make_kernel([=](const Call& call) {
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(bf16, operand<void>(call, 0), factor, operand<void>(call, 1), begin, end);
    });
  });
}

Prepared prepare_sum_leading(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  const bool bf16 = expect_compute_dtype(signature, 0);
  const TensorDesc &x = signature.operands[0], &y = signature.operands[1];
  expect_operand(signature, 1, x.dtype, y.elements());
  expect_last_dims(signature, x.shape, y.shape);
  const std::int64_t columns = y.elements(), rows = columns == 0 ? 0 : x.elements() / columns;
  const int threads = threads_for(x.bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, sum_rows);
  return make_kernel([=](const Call& call) {
    parallel_ranges(columns, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(bf16, bf16, operand<void>(call, 0), operand<void>(call, 1), rows, columns, false, begin, end);
    });
  });
}

Prepared prepare_bias_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  const bool bf16_c = expect_compute_dtype(signature, 0), bf16_r = expect_compute_dtype(signature, 1);
  const auto [rows, columns, inner] = bias_grad_sizes(signature);
  const bool accumulate = accumulates(signature);
  const int threads = threads_for(signature.operands[0].bytes(), context.threads);
  const auto by_rows = CHOOSE_BY_ISA_OR_BF16(context.isa, sum_rows);
  const auto by_planes = CHOOSE_BY_ISA_OR_BF16(context.isa, sum_planes);
  const std::int64_t grain = inner == 1 ? kGrain : 16;  // whole cache lines of what is written
  return make_kernel([=, rows = rows, columns = columns, inner = inner](const Call& call) {
    const void* dy = operand<void>(call, 0);
    void* dbias = operand<void>(call, 1);
    parallel_ranges(columns, grain, threads, [&](std::int64_t begin, std::int64_t end) {
      if (inner == 1) return by_rows(bf16_c, bf16_r, dy, dbias, rows, columns, accumulate, begin, end);
      by_planes(bf16_c, bf16_r, dy, dbias, rows, columns, inner, accumulate, begin, end);
    });
  });
}

}  // namespace trainer::kernels::cpu
