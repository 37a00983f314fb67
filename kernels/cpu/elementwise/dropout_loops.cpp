// Loops file (vec.h). A Philox word lies in the low half of a 64-bit lane: the widening multiplication ignores what the
// high half holds, so a round is two products, two shifts and two three-way exclusive ors, with no masking.
#include "kernels/cpu/elementwise/dropout_loops.h"

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

using U64 = std::uint64_t __attribute__((vector_size(4 * kLanes)));

VEC_INLINE U64 splat_u64(std::uint64_t x) { return U64{} + x; }

/// The 64-bit products of the low halves.
#if defined(__AVX512F__)
VEC_INLINE U64 multiply_low_halves(U64 a, U64 b) { return (U64)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
VEC_INLINE U64 block_numbers() { return U64{0, 1, 2, 3, 4, 5, 6, 7}; }
VEC_INLINE U64 pairs_low(U64 a, U64 b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
VEC_INLINE U64 pairs_high(U64 a, U64 b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#elif defined(__AVX2__)
VEC_INLINE U64 multiply_low_halves(U64 a, U64 b) { return (U64)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
VEC_INLINE U64 block_numbers() { return U64{0, 1, 2, 3}; }
VEC_INLINE U64 pairs_low(U64 a, U64 b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
VEC_INLINE U64 pairs_high(U64 a, U64 b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#else
VEC_INLINE U64 multiply_low_halves(U64 a, U64 b) { return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu); }
VEC_INLINE U64 block_numbers() { return U64{0, 1}; }
VEC_INLINE U64 pairs_low(U64 a, U64 b) { return __builtin_shufflevector(a, b, 0, 2); }
VEC_INLINE U64 pairs_high(U64 a, U64 b) { return __builtin_shufflevector(a, b, 1, 3); }
#endif

/// What the rounds add, in memory rather than made again for each block.
struct Schedule {
  U64 first[10], second[10];
  explicit Schedule(std::uint64_t key) {
    std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      first[round] = splat_u64(k0);
      second[round] = splat_u64(k1);
    }
  }
};

struct Words {
  U32 low, high;  // of the elements of kLanes / 2 consecutive blocks, in order
};

/// philox() of engine/core/random.h for kLanes / 2 blocks from `first`; `high` is the upper half of their numbers.
VEC_INLINE Words philox(const Schedule& schedule, std::uint64_t stream, std::uint32_t first, std::uint32_t high) {
  const U64 m0 = splat_u64(0xD2511F53u), m1 = splat_u64(0xCD9E8D57u);
  U64 c0 = block_numbers() + first, c1 = splat_u64(high), c2 = splat_u64(stream), c3 = splat_u64(stream >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const U64 p0 = multiply_low_halves(c0, m0), p1 = multiply_low_halves(c2, m1);
    c0 = (p1 >> 32) ^ c1 ^ schedule.first[round];
    c2 = (p0 >> 32) ^ c3 ^ schedule.second[round];
    c1 = p1;
    c3 = p0;
  }
  const U64 front = (c0 & 0xFFFFFFFFu) | (c1 << 32), back = (c2 & 0xFFFFFFFFu) | (c3 << 32);
  return {(U32)pairs_low(front, back), (U32)pairs_high(front, back)};
}

/// What decides over elements of one call.
struct Mask {
  Schedule schedule;
  std::uint32_t high;  // (step << 40) >> 32; a sample has fewer than 2^32 blocks
  std::uint32_t threshold;
  F32 scale;
  explicit Mask(const DropoutArgs& args)
      : schedule(args.key), high(args.step << 8), threshold(args.threshold), scale(splat(args.scale)) {}
};

/// The words of 2 · kLanes elements of a sample, from the beginning of the block of `element` on.
VEC_INLINE Words words_of(const Mask& mask, std::uint64_t sample, std::int64_t element) {
  return philox(mask.schedule, sample, static_cast<std::uint32_t>(element / 4), mask.high);
}

/// `count` elements from element `first` of a sample on.
template <typename T>
void drop(const Mask& mask, std::uint64_t sample, std::int64_t first, const T* x, T* y, std::int64_t count) {
  const auto keep = [&](U32 words, std::int64_t i, auto load, auto store) __attribute__((always_inline)) {
    store(y + i, words >= mask.threshold ? load(x + i) * mask.scale : F32{});
  };
  std::int64_t at = 0;
  if (const int skipped = static_cast<int>(first % 4); skipped != 0) {  // up to the next whole block
    const U32 words = words_of(mask, sample, first).low;
    for (int lane = skipped; lane < 4 && at < count; ++lane, ++at)
      store_first(y + at, words[lane] >= mask.threshold ? splat(to_f32(x[at])) * mask.scale : F32{}, 1);
  }
  for (; at + 2 * kLanes <= count; at += 2 * kLanes) {
    const Words words = words_of(mask, sample, first + at);
    const auto whole = [](const auto* p) __attribute__((always_inline)) { return load(p); };
    const auto put = [](auto* p, F32 v) __attribute__((always_inline)) { store(p, v); };
    keep(words.low, at, whole, put);
    keep(words.high, at + kLanes, whole, put);
  }
  if (at == count) return;
  const Words words = words_of(mask, sample, first + at);
  const std::int64_t middle = at + kLanes < count ? at + kLanes : count;
  for_each_vector(at, middle, [&](std::int64_t i, auto load, auto store) { keep(words.low, i, load, store); });
  for_each_vector(middle, count, [&](std::int64_t i, auto load, auto store) { keep(words.high, i, load, store); });
}

template <typename T>
void dropout_of(const DropoutArgs& args, std::int64_t begin, std::int64_t end) {
  const Mask mask(args);
  while (begin < end) {
    const std::int64_t column = begin % args.columns, row = begin / args.columns;
    const std::int64_t start = args.halves ? row / 2 * args.stride + row % 2 * args.odd : row * args.stride;
    const std::int64_t place = args.origin + start + column;
    const std::int64_t first = place % args.sample;
    std::int64_t count = end - begin;
    if (count > args.columns - column) count = args.columns - column;
    if (count > args.sample - first) count = args.sample - first;
    drop(mask, static_cast<std::uint64_t>(place / args.sample), first, static_cast<const T*>(args.x) + begin,
         static_cast<T*>(args.y) + begin, count);
    begin += count;
  }
}

}  // namespace

void dropout(const DropoutArgs& args, std::int64_t begin, std::int64_t end) {
  return args.bf16 ? dropout_of<Bf16>(args, begin, end) : dropout_of<float>(args, begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
