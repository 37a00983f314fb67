// dropout, cut over threads by elements.
#include "kernels/dropout.h"

#include "kernels/cpu/elementwise/dropout_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {

Prepared prepare_dropout(const Signature& signature, const Context& context) {
  const DropoutMask mask = dropout_mask(signature);
  const TensorDesc& x = signature.operands[0];
  const std::int64_t elements = x.elements();
  DropoutArgs args;
  args.bf16 = expect_compute_dtype(signature, 0);
  args.key = mask.key;
  args.threshold = mask.threshold;
  args.scale = mask.scale;
  args.sample = mask.sample;
  args.stride = mask.stride;
  args.columns = mask.columns;
  args.halves = mask.zigzag;
  constexpr std::int64_t kGrain = 1024;  // elements
  const int threads = threads_for(4 * x.bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, dropout);
  return make_kernel([=](const Call& call) {
    DropoutArgs now = args;
    now.step = static_cast<std::uint32_t>(*operand<std::int32_t>(call, 1));
    now.origin = call.origin;
    now.odd = mask.odd(call.origin);
    now.x = operand<void>(call, 0);
    now.y = operand<void>(call, 2);
    parallel_ranges(elements, kGrain, threads, [&](std::int64_t begin, std::int64_t end) { loop(now, begin, end); });
  });
}

}  // namespace trainer::kernels::cpu
