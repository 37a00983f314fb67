// What balances experts by a bias: counting choices, and moving the bias once a step. Both are a few thousand
// additions.
#include "kernels/cpu/experts/balance.h"

#include "engine/core/op_record.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/experts.h"
#include "kernels/optimizer.h"

namespace trainer::kernels::cpu {

Prepared count_choices(const Signature& s) {
  expect_operands(s, 3);
  const std::int64_t choices = s.operands[1].elements(), experts = s.operands[2].elements();
  expect_operand(s, 1, DType::i32, choices);
  expect_operand(s, 2, DType::f64, experts);
  return make_kernel([=](const Call& call) {
    const std::int32_t* const chosen = operand<std::int32_t>(call, 1);
    double* const counts = operand<double>(call, 2);
    for (std::int64_t i = 0; i < choices; ++i)
      if (chosen[i] >= 0) ++counts[chosen[i]];
  });
}

Prepared move_bias(const Signature& s) {
  expect_operands(s, 3);
  const std::int64_t experts = s.operands[0].elements();
  expect_operand(s, 0, DType::f64, experts);
  expect_operand(s, 1, DType::f32, 4);
  expect_operand(s, 2, DType::f32, experts);
  return make_kernel([experts, rate = static_cast<float>(real(s, "rate"))](const Call& call) {
    if (operand<Scalars>(call, 1)->factor == 0) return;
    const double* const counts = operand<double>(call, 0);
    float* const bias = operand<float>(call, 2);
    double sum = 0;  // of whole numbers: exact
    for (std::int64_t e = 0; e < experts; ++e) sum += counts[e];
    for (std::int64_t e = 0; e < experts; ++e) {
      const double excess = counts[e] * static_cast<double>(experts) - sum;
      if (excess != 0) bias[e] -= excess > 0 ? rate : -rate;
    }
  });
}

}  // namespace trainer::kernels::cpu
