// Loops file (vec.h). kLanes Philox blocks at a time give 4 · kLanes words, which are then put in the elements' order.
#include "kernels/cpu/dropout_loops.h"

#include "kernels/cpu/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

struct Words {
  U32 word[4];  // of kLanes consecutive blocks
};

/// philox() of engine/core/random.h for the blocks `first` + lane, whose upper half is `high`.
VEC_INLINE Words philox(std::uint64_t key, std::uint64_t stream, std::uint32_t first, std::uint32_t high) {
  U32 c0 = count_from(first);
  U32 c1 = splat_u32(high), c2 = splat_u32(static_cast<std::uint32_t>(stream)), c3 = splat_u32(static_cast<std::uint32_t>(stream >> 32));
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    U32 high0, low0, high1, low1;
    multiply_wide(c0, 0xD2511F53u, high0, low0);
    multiply_wide(c2, 0xCD9E8D57u, high1, low1);
    c0 = high1 ^ c1 ^ k0;
    c2 = high0 ^ c3 ^ k1;
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// From word w of block b in lane b of vector w to element 4 b + w: a transposition, by two rounds of interleaving.
VEC_INLINE Words in_element_order(const Words& w) {
  const U32 even_low = interleave_low(w.word[0], w.word[2]), even_high = interleave_high(w.word[0], w.word[2]);
  const U32 odd_low = interleave_low(w.word[1], w.word[3]), odd_high = interleave_high(w.word[1], w.word[3]);
  return {{interleave_low(even_low, odd_low), interleave_high(even_low, odd_low), interleave_low(even_high, odd_high),
           interleave_high(even_high, odd_high)}};
}

template <typename T>
void dropout_of(const DropoutArgs& args, std::int64_t begin, std::int64_t end) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  const std::uint32_t high = args.step << 8;  // (step << 40) >> 32; a sample has fewer than 2^32 blocks
  const F32 scale = splat(args.scale);
  for (std::int64_t at = begin; at < end; at += 4 * kLanes) {
    const Words words = in_element_order(philox(args.key, args.stream, static_cast<std::uint32_t>(at / 4), high));
    for (int v = 0; v < 4; ++v) {
      const std::int64_t from = at + v * kLanes;
      if (from >= end) return;
      const I32 keep = words.word[v] >= args.threshold;
      for_each_vector(from, from + kLanes < end ? from + kLanes : end,
                      [&](std::int64_t i, auto load, auto store) { store(y + i, select(keep, load(x + i) * scale, F32{})); });
    }
  }
}

}  // namespace

void dropout(const DropoutArgs& args, std::int64_t begin, std::int64_t end) {
  return args.bf16 ? dropout_of<Bf16>(args, begin, end) : dropout_of<float>(args, begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
