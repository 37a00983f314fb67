// What local SGD does to flat tensors, cut over elements.
#include "kernels/averaging.h"

#include "engine/core/op_record.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/optimizer/averaging_loops.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

constexpr std::int64_t kGrain = 64;  // elements

float factor_of(const Signature& signature) { return static_cast<float>(real(signature, "factor")); }

}  // namespace

Prepared prepare_outer_gradient(const Signature& signature, const Context& context) {
  const std::int64_t count = expect_flat(signature, 3);
  const int threads = threads_for(12 * count, context.threads);
  const auto loop = CHOOSE_BY_ISA(context.isa, outer_gradient);
  return make_kernel([=](const Call& call) {
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(operand<float>(call, 0), operand<float>(call, 1), operand<float>(call, 2), begin, end);
    });
  });
}

Prepared prepare_outer_step(const Signature& signature, const Context& context) {
  const std::int64_t count = expect_flat(signature, 4);
  const int threads = threads_for(24 * count, context.threads);
  OuterArgs fixed;
  fixed.factor = factor_of(signature);
  fixed.lr = static_cast<float>(real(signature, "lr"));
  fixed.mu = static_cast<float>(real(signature, "momentum"));
  fixed.nesterov = flag(signature, "nesterov");
  const auto loop = CHOOSE_BY_ISA(context.isa, outer_step);
  return make_kernel([=](const Call& call) {
    OuterArgs args = fixed;
    args.anchor = operand<float>(call, 0);
    args.momentum = operand<float>(call, 1);
    args.gradient = operand<float>(call, 2);
    args.master = operand<float>(call, 3);
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) { loop(args, begin, end); });
  });
}

Prepared prepare_apply_delayed(const Signature& signature, const Context& context) {
  const std::int64_t count = expect_flat(signature, 3);
  const int threads = threads_for(16 * count, context.threads);
  const float factor = factor_of(signature);
  const auto loop = CHOOSE_BY_ISA(context.isa, apply_delayed);
  return make_kernel([=](const Call& call) {
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(operand<float>(call, 0), operand<float>(call, 1), operand<float>(call, 2), factor, begin, end);
    });
  });
}

}  // namespace trainer::kernels::cpu
