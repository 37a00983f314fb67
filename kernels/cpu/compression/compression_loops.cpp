// Loops file (vec.h). Bound by memory: of an f32 gradient compress_bf16 moves 14 bytes for each element,
// quantize_int8 13. A block is summed into L1 while its largest value is sought, and coded from there.
#include "kernels/cpu/compression/compression_loops.h"

#include "engine/core/compression.h"
#include "kernels/cpu/runtime/vec_bytes.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr std::int32_t kInfinity = 0x7F800000;  // bits; of finite values they are below, of NaN above
constexpr float kSmallest = 0x1p-126f;          // of normal numbers

VEC_INLINE I32 larger(I32 a, I32 b) {
  const I32 mask = a > b;
  return (mask & a) | (~mask & b);
}

VEC_INLINE std::int32_t largest(I32 x) {
  std::int32_t found = x[0];
  for (int i = 1; i < kLanes; ++i) found = x[i] > found ? x[i] : found;
  return found;
}

// ---- codes: the whole number in the low bits of a float above 2^23, as a byte

#if defined(__AVX512F__)
VEC_INLINE F32 load_codes(const signed char* p) {
  return (F32)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
#elif defined(__AVX2__)
VEC_INLINE F32 load_codes(const signed char* p) {
  return (F32)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
#else
VEC_INLINE F32 load_codes(const signed char* p) {
  F32 x;
  for (int i = 0; i < kLanes; ++i) x[i] = static_cast<float>(p[i]);
  return x;
}
#endif

template <typename G>
void compress_of(const G* gradient, float* residual, Bf16* packed, std::int64_t begin, std::int64_t end) {
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) {
    const F32 before = load(residual + i), a = load(gradient + i) + before;
    store(packed + i, a);
    const F32 sent = load(packed + i);
    store(residual + i, select((bits_of(sent) & 0x7FFFFFFF) < kInfinity, a - sent, before));
  });
}

struct Block {
  signed char* codes;
  float* scale;
  std::int64_t place;  ///< in the gradient, of its first element
  int count;
  bool last;
};

VEC_INLINE Block block_of(const Int8Chunks& chunks, std::int64_t chunk, std::int64_t block) {
  unsigned char* start = chunks.bytes + chunk * chunks.chunk_bytes;
  const std::int64_t first = block * kInt8Block, left = chunks.elements - first;
  return {reinterpret_cast<signed char*>(start) + first, reinterpret_cast<float*>(start + chunks.scales_offset) + block,
          chunk * chunks.elements + first, static_cast<int>(left < kInt8Block ? left : kInt8Block), left <= kInt8Block};
}

/// a = gradient + residual, with zeros after them up to a whole vector; returns the bits of the largest |a|.
template <bool kFeedback, typename G>
VEC_INLINE std::int32_t sum_block(const G* gradient, const float* residual, int count, float* a) {
  I32 most{};
  for_each_vector(0, count, [&](std::int64_t i, auto load, auto) {
    F32 sum = load(gradient + i);
    if constexpr (kFeedback) sum = sum + load(residual + i);
    __builtin_memcpy(a + i, &sum, sizeof sum);
    most = larger(most, bits_of(sum) & 0x7FFFFFFF);
  });
  return largest(most);
}

/// A whole block of codes; those after `count` are zeros, and not stored beyond the padding of the last block.
VEC_INLINE void store_block(const Block& block, const signed char* codes, const Int8Chunks& to, std::int64_t index) {
  const std::int64_t bytes = block.last ? to.scales_offset - index * kInt8Block : kInt8Block;
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_memcpy(block.codes + i, codes + i, 64);
}

template <bool kFeedback, typename G>
void quantize_of(const G* gradient, float* residual, const Int8Chunks& to, std::int64_t chunk, std::int64_t index) {
  const Block block = block_of(to, chunk, index);
  alignas(64) float a[kInt8Block];
  alignas(64) signed char codes[kInt8Block];
  if constexpr (kFeedback) residual += block.place;
  const std::int32_t most = sum_block<kFeedback>(gradient + block.place, residual, block.count, a);
  const float largest = __builtin_bit_cast(float, most);
  const bool finite = most < kInfinity, normal = finite && largest / 127.0f >= kSmallest;
  const float scale = normal ? largest / 127.0f : finite ? 0.0f : __builtin_nanf("");
  const F32 inverse = splat(normal ? 127.0f / largest : 0.0f), by = splat(-scale), magic = splat(0x1.8p23f);
  if (block.count < kInt8Block) __builtin_memset(codes, 0, sizeof codes);
  if (!finite) {
    __builtin_memset(codes, 0, sizeof codes);
  } else {
    for_each_vector(0, block.count, [&](std::int64_t i, auto, auto store_any) {
      const F32 x = load(a + i), shifted = fma(x, inverse, magic);
      store_bytes(reinterpret_cast<unsigned char*>(codes) + i, bits_of(shifted));
      if constexpr (kFeedback) store_any(residual + i, fma(shifted - magic, by, x));
    });
  }
  store_block(block, codes, to, index);
  *block.scale = scale;
  if (!block.last) return;
  float* end = reinterpret_cast<float*>(to.bytes + (chunk + 1) * to.chunk_bytes);
  for (float* p = block.scale + 1; p < end; ++p) *p = 0;
}

template <typename Y>
void dequantize_of(const Int8Chunks& from, Y* y, std::int64_t chunk, std::int64_t index) {
  const Block block = block_of(from, chunk, index);
  const F32 scale = splat(*block.scale);
  for_each_vector(0, block.count, [&](std::int64_t i, auto, auto store_y) {
    store_y(y + block.place + i, load_codes(block.codes + i) * scale);
  });
}

template <typename Y>
void dequantize_sum_of(const Int8Chunks& from, Y* y, std::int64_t index) {
  alignas(64) float sum[kInt8Block];
  const int count = block_of(from, 0, index).count;
  for (std::int64_t chunk = 0; chunk < from.slices; ++chunk) {
    const Block block = block_of(from, chunk, index);
    const F32 scale = splat(*block.scale);
    for (int i = 0; i < count; i += kLanes) {
      const F32 code = load_codes(block.codes + i);
      store(sum + i, chunk == 0 ? code * scale : fma(code, scale, load(sum + i)));
    }
  }
  for_each_vector(0, count,
                  [&](std::int64_t i, auto, auto store_y) { store_y(y + index * kInt8Block + i, load(sum + i)); });
}

}  // namespace

void compress_bf16(bool bf16, const void* gradient, float* residual, Bf16* packed, std::int64_t begin,
                   std::int64_t end) {
  if (bf16) return compress_of(static_cast<const Bf16*>(gradient), residual, packed, begin, end);
  compress_of(static_cast<const float*>(gradient), residual, packed, begin, end);
}

void quantize_int8(bool bf16, const void* gradient, float* residual, const Int8Chunks& to, std::int64_t chunk,
                   std::int64_t block) {
  const auto quantize = [&](const auto* x) {
    residual == nullptr ? quantize_of<false>(x, residual, to, chunk, block)
                        : quantize_of<true>(x, residual, to, chunk, block);
  };
  bf16 ? quantize(static_cast<const Bf16*>(gradient)) : quantize(static_cast<const float*>(gradient));
}

void dequantize_int8(const Int8Chunks& from, bool bf16, void* y, std::int64_t chunk, std::int64_t block) {
  if (bf16) return dequantize_of(from, static_cast<Bf16*>(y), chunk, block);
  dequantize_of(from, static_cast<float*>(y), chunk, block);
}

void dequantize_sum_int8(const Int8Chunks& from, bool bf16, void* y, std::int64_t block) {
  if (bf16) return dequantize_sum_of(from, static_cast<Bf16*>(y), block);
  dequantize_sum_of(from, static_cast<float*>(y), block);
}

void round_to_bf16(const float* x, Bf16* y, std::int64_t count) {
  for_each_vector(0, count, [&](std::int64_t i, auto load, auto store) { store(y + i, load(x + i)); });
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
