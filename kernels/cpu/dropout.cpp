// dropout, cut over chunks of samples.
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
  const std::int64_t samples = x.shape[0], size = samples == 0 ? 0 : x.elements() / samples;
  CHECK(size < std::int64_t{1} << 34, "a sample has fewer than 2^34 elements");
  constexpr std::int64_t kChunk = 1024;  // elements
  const std::int64_t chunks = (size + kChunk - 1) / kChunk;
  const std::int64_t element = size_of(x.dtype);
  const int threads = threads_for(4 * x.bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, dropout);
  return make_kernel([=](const Call& call) {
    const std::uint32_t step = static_cast<std::uint32_t>(*operand<std::int32_t>(call, 1));
    parallel_ranges(samples * chunks, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      DropoutArgs now = args;
      now.step = step;
      while (begin < end) {
        const std::int64_t sample = begin / chunks, chunk = begin % chunks, many = std::min(end - begin, chunks - chunk);
        now.stream = static_cast<std::uint64_t>(call.origin + sample);
        now.x = operand<char>(call, 0) + sample * size * element;
        now.y = operand<char>(call, 2) + sample * size * element;
        loop(now, chunk * kChunk, std::min(size, (chunk + many) * kChunk));
        begin += many;
      }
    });
  });
}

}  // namespace trainer::kernels::cpu
