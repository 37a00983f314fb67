// What balances experts by a bias: counting choices, and moving the bias once a step. Both are a few thousand
// additions.
#include "kernels/cpu/experts/balance.h"

#include "engine/core/op_record.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/experts.h"
#include "kernels/optimizer.h"

namespace trainer::kernels::cpu {

Prepared count_choices(const Signature& s) {
  const auto [choices, experts] = count_sizes(s);
  return make_kernel([choices = choices](const Call& call) {
    const std::int32_t* const chosen = operand<std::int32_t>(call, 1);
    double* const counts = operand<double>(call, 2);
    for (std::int64_t i = 0; i < choices; ++i)
      if (chosen[i] >= 0) ++counts[chosen[i]];
  });
}

Prepared move_bias(const Signature& s) {
  const std::int64_t experts = balanced_experts(s);
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
