// dropout, cut over threads by elements.
#include "kernels/dropout.h"

#include <cmath>

#include "kernels/cpu/choose.h"
#include "kernels/cpu/dropout_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/make_kernel.h"
#include "kernels/cpu/parallel.h"

namespace trainer::kernels::cpu {

Prepared prepare_dropout(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  expect_alike(signature, {0, 2});
  expect_operand(signature, 1, DType::i32, 1);
  const TensorDesc& x = signature.operands[0];
  const double p = signature.attributes.real("p");
  CHECK(x.shape.rank() >= 1, describe(signature) + ": dim 0 counts samples");
  CHECK(p >= 0 && p < 1, "dropout's p must be in [0, 1)");
  DropoutArgs args;
  args.bf16 = expect_compute_dtype(signature, 0);
  args.key = static_cast<std::uint64_t>(signature.attributes.integer("key"));
  args.threshold = static_cast<std::uint32_t>(std::min(std::ceil(p * 0x1p32), 0x1p32 - 1));
  args.scale = static_cast<float>(1.0 / (1.0 - p));
  const std::int64_t elements = x.elements(), columns = x.shape[-1];
  args.sample = signature.attributes.integer("sample", elements / std::max<std::int64_t>(x.shape[0], 1));
  args.stride = signature.attributes.integer("stride", columns);
  CHECK(args.sample < std::int64_t{1} << 34, "a sample has fewer than 2^34 elements");
  CHECK(args.stride >= columns, describe(signature) + ": a piece of a row is no longer than the row");
  args.columns = args.stride == columns ? std::max<std::int64_t>(elements, 1) : columns;  // whole rows lie one after another
  constexpr std::int64_t kGrain = 1024;  // elements
  const int threads = threads_for(4 * x.bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, dropout);
  return make_kernel([=](const Call& call) {
    DropoutArgs now = args;
    now.step = static_cast<std::uint32_t>(*operand<std::int32_t>(call, 1));
    now.origin = call.origin;
    now.x = operand<void>(call, 0);
    now.y = operand<void>(call, 2);
    parallel_ranges(elements, kGrain, threads, [&](std::int64_t begin, std::int64_t end) { loop(now, begin, end); });
  });
}

}  // namespace trainer::kernels::cpu
