// Compression of gradients to bf16 and int8, cut over elements and over blocks that share a scale.
#include "kernels/compression.h"

#include "engine/core/compression.h"
#include "engine/core/op_record.h"
#include "kernels/cpu/compression/compression_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

constexpr std::int64_t kGrain = 64;        // elements
constexpr std::int64_t kBlocksGrain = 16;  // blocks: a line of scales

std::int64_t slices_of(const Signature& signature) { return integer(signature, "slices"); }

/// Chunks of so many elements as operand `operand` must hold them.
Int8Chunks chunks_of(const Signature& signature, int operand, std::int64_t elements) {
  const std::int64_t slices = slices_of(signature), chunk_bytes = int8_bytes(elements);
  expect_operand(signature, operand, DType::u8, slices * chunk_bytes);
  return {.bytes = nullptr,
          .elements = elements,
          .chunk_bytes = chunk_bytes,
          .scales_offset = int8_scales_offset(elements),
          .slices = slices};
}

/// Elements of each slice of operand `operand`, which must divide.
std::int64_t elements_of_slice(const Signature& signature, int operand) {
  const std::int64_t elements = signature.operands[static_cast<std::size_t>(operand)].elements(),
                     slices = slices_of(signature);
  CHECK(slices >= 1 && elements % slices == 0, describe(signature) + ": the slices must divide the elements");
  return elements / slices;
}

/// fn(chunk, block) for every block of every chunk.
template <typename Fn>
void for_each_block(std::int64_t slices, std::int64_t blocks, int threads, Fn fn) {
  parallel_ranges(slices * blocks, kBlocksGrain, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) fn(i / blocks, i % blocks);
  });
}

Int8Chunks at(Int8Chunks chunks, unsigned char* bytes) {
  chunks.bytes = bytes;
  return chunks;
}

}  // namespace

Prepared prepare_compress_bf16(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const bool bf16 = expect_compute_dtype(signature, 0);
  const TensorDesc& gradient = signature.operands[0];
  const std::int64_t count = gradient.elements();
  expect_operand(signature, 1, DType::f32, count);
  expect_operand(signature, 2, DType::bf16, count);
  const int threads = threads_for(gradient.bytes() + 10 * count, context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, compress_bf16);
  return make_kernel([=](const Call& call) {
    parallel_ranges(count, kGrain, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(bf16, operand<void>(call, 0), operand<float>(call, 1), operand<Bf16>(call, 2), begin, end);
    });
  });
}

Prepared prepare_quantize_int8(const Signature& signature, const Context& context) {
  const bool feedback = flag(signature, "feedback");
  const int packet = feedback ? 2 : 1;
  expect_operands(signature, packet + 1);
  const bool bf16 = expect_compute_dtype(signature, 0);
  const TensorDesc& gradient = signature.operands[0];
  if (feedback) expect_operand(signature, 1, DType::f32, gradient.elements());
  const Int8Chunks chunks = chunks_of(signature, packet, elements_of_slice(signature, 0));
  const std::int64_t blocks = int8_blocks(chunks.elements);
  const int threads = threads_for(gradient.bytes() + (feedback ? 9 : 1) * gradient.elements(), context.threads);
  const auto loop = CHOOSE_BY_ISA(context.isa, quantize_int8);
  return make_kernel([=](const Call& call) {
    const Int8Chunks to = at(chunks, operand<unsigned char>(call, packet));
    float* const residual = feedback ? operand<float>(call, 1) : nullptr;
    for_each_block(chunks.slices, blocks, threads, [&](std::int64_t chunk, std::int64_t block) {
      loop(bf16, operand<void>(call, 0), residual, to, chunk, block);
    });
  });
}

Prepared prepare_dequantize_int8(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  const bool bf16 = expect_compute_dtype(signature, 1);
  const Int8Chunks chunks = chunks_of(signature, 0, elements_of_slice(signature, 1));
  const std::int64_t blocks = int8_blocks(chunks.elements);
  const int threads = threads_for(signature.operands[0].bytes() + signature.operands[1].bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, dequantize_int8);
  return make_kernel([=](const Call& call) {
    const Int8Chunks from = at(chunks, operand<unsigned char>(call, 0));
    for_each_block(chunks.slices, blocks, threads, [&](std::int64_t chunk, std::int64_t block) {
      loop(from, bf16, operand<void>(call, 1), chunk, block);
    });
  });
}

Prepared prepare_dequantize_sum_int8(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  const bool bf16 = expect_compute_dtype(signature, 1);
  const Int8Chunks chunks = chunks_of(signature, 0, signature.operands[1].elements());
  CHECK(chunks.slices >= 1, describe(signature) + ": at least one slice");
  const std::int64_t blocks = int8_blocks(chunks.elements);
  const int threads = threads_for(signature.operands[0].bytes() + signature.operands[1].bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, dequantize_sum_int8);
  return make_kernel([=](const Call& call) {
    const Int8Chunks from = at(chunks, operand<unsigned char>(call, 0));
    for_each_block(1, blocks, threads,
                   [&](std::int64_t, std::int64_t block) { loop(from, bf16, operand<void>(call, 1), block); });
  });
}

}  // namespace trainer::kernels::cpu
