// row_squares and over_root.
#include "kernels/row_norms.h"

#include <cmath>

#include "engine/core/op_record.h"
#include "kernels/bf16.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/reduction/reduce_loops.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

float as_element(float value, const float*) { return value; }
Bf16 as_element(float value, const Bf16*) { return to_bf16(value); }

template <typename T>
Prepared over_root_of(std::int64_t count) {
  return make_kernel([=](const Call& call) {
    const T* const x = operand<T>(call, 0);
    const float* const squares = operand<float>(call, 1);
    T* const y = operand<T>(call, 2);
    for (std::int64_t i = 0; i < count; ++i)
      y[i] = as_element(squares[i] == 0 ? 0.0F : to_f32(x[i]) / std::sqrt(squares[i]), y);
  });
}

}  // namespace

Prepared prepare_row_squares(const Signature& signature, const Context& context) {
  const auto [rows, columns, rank] = row_squares_sizes(signature);
  const bool bf16 = expect_compute_dtype(signature, 0);
  const float factor = static_cast<float>(real(signature, "factor"));
  const int threads = threads_for(signature.operands[0].bytes() * (1 + rank), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, row_squares);
  return make_kernel([=, rows = rows, columns = columns, rank = rank](const Call& call) {
    parallel_ranges(rows, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(bf16, operand<void>(call, 0), operand<void>(call, 1), operand<void>(call, 2), factor, columns, rank,
           operand<float>(call, 3), begin, end);
    });
  });
}

Prepared prepare_over_root(const Signature& signature, const Context&) {
  expect_operands(signature, 3);
  expect_alike(signature, {0, 2});
  const std::int64_t count = signature.operands[0].elements();
  expect_operand(signature, 1, DType::f32, count);
  return expect_compute_dtype(signature, 0) ? over_root_of<Bf16>(count) : over_root_of<float>(count);
}

}  // namespace trainer::kernels::cpu
