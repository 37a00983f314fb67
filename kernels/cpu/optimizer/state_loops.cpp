// Loops file (vec.h). States lie in L1 as f32 while an update uses them: what is here adds arithmetic to the update and
// takes bytes from memory.
#include "kernels/cpu/optimizer/state_loops.h"

#include "engine/core/compression.h"
#include "kernels/cpu/runtime/vec_bytes.h"
#include "kernels/state_codes.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

// ---- Lookups. Of an index the lower bits count: 4, or 3 where a vector has but 8 lanes

#if defined(__AVX512F__)
struct Table {
  __m512 values;
  explicit Table(const float (&of)[16]) : values(_mm512_loadu_ps(of)) {}
  explicit Table(const float (&of)[8]) : values(_mm512_broadcast_f32x8(_mm256_loadu_ps(of))) {}
  [[gnu::always_inline]] inline F32 operator[](I32 index) const {
    return (F32)_mm512_permutexvar_ps((__m512i)index, values);
  }
};
#elif defined(__AVX2__)
struct Table {
  __m256 values;
  explicit Table(const float (&of)[16])
      : values(_mm256_or_ps(_mm256_loadu_ps(of), _mm256_loadu_ps(of + 8))) {}  // no two are of one place
  explicit Table(const float (&of)[8]) : values(_mm256_loadu_ps(of)) {}
  [[gnu::always_inline]] inline F32 operator[](I32 index) const {
    return (F32)_mm256_permutevar8x32_ps(values, (__m256i)index);
  }
};
#else
struct Table {
  const float* values;
  int mask;
  explicit Table(const float (&of)[16]) : values(of), mask(15) {}
  explicit Table(const float (&of)[8]) : values(of), mask(7) {}
  [[gnu::always_inline]] inline F32 operator[](I32 index) const {
    F32 x;
    for (int i = 0; i < kLanes; ++i) x[i] = values[index[i] & mask];
    return x;
  }
};
#endif

/// Masks as the instruction set has them.
#if defined(__AVX512F__)
using Mask = __mmask16;
VEC_INLINE Mask at_least(F32 x, F32 y) { return _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_GE_OQ); }
VEC_INLINE Mask equal(I32 x, int y) { return _mm512_cmpeq_epi32_mask((__m512i)x, _mm512_set1_epi32(y)); }
VEC_INLINE Mask not_zero(I32 x) { return _mm512_test_epi32_mask((__m512i)x, (__m512i)x); }
VEC_INLINE I32 choose(Mask mask, I32 yes, I32 no) {
  return (I32)_mm512_mask_mov_epi32((__m512i)no, mask, (__m512i)yes);
}
VEC_INLINE I32 only(Mask mask, I32 x) { return (I32)_mm512_maskz_mov_epi32(mask, (__m512i)x); }
#else
using Mask = I32;
VEC_INLINE Mask at_least(F32 x, F32 y) { return x >= y; }
VEC_INLINE Mask equal(I32 x, int y) { return x == y; }
VEC_INLINE Mask not_zero(I32 x) { return x != 0; }
VEC_INLINE I32 choose(Mask mask, I32 yes, I32 no) { return (mask & yes) | (~mask & no); }
VEC_INLINE I32 only(Mask mask, I32 x) { return mask & x; }
#endif

#if defined(__AVX512F__)
/// The decade of magnitudes that are 0 or at least 2^-24, in the lower 4 bits.
struct Decades {
  __m512i low, high;
  explicit Decades(const DynamicCode& code)
      : low(_mm512_loadu_si512(code.bound)), high(_mm512_loadu_si512(code.bound + 16)) {}
  [[gnu::always_inline]] inline I32 of(F32 magnitude) const {
    const __m512i bound = _mm512_permutex2var_epi32(low, _mm512_srli_epi32((__m512i)magnitude, 23), high);
    return (I32)_mm512_mask_add_epi32(bound, at_least(magnitude, (F32)bound), bound, _mm512_set1_epi32(1));
  }
};
#else
struct Decades {
  F32 least[DynamicCode::kDecades];
  explicit Decades(const DynamicCode& code) {
    for (int j = 1; j < DynamicCode::kDecades; ++j) least[j] = splat(code.least[j]);
  }
  [[gnu::always_inline]] inline I32 of(F32 magnitude) const {
    I32 decade{};
    for (int j = 1; j < DynamicCode::kDecades; ++j) decade -= magnitude >= least[j];
    return decade;
  }
};
#endif

VEC_INLINE F32 to_float(I32 x) { return __builtin_convertvector(x, F32); }
VEC_INLINE I32 whole_part(F32 x) { return __builtin_convertvector(x, I32); }

template <bool has_sign>
constexpr const DynamicCode& code_of() {
  return has_sign ? kSignedCode : kUnsignedCode;
}

// ---- One block

template <bool has_sign>
struct Decoder {
  Table slope{code_of<has_sign>().value_slope}, offset{code_of<has_sign>().value_offset};

  /// Times `scale`.
  [[gnu::always_inline]] inline F32 value(I32 byte, F32 scale) const {
    const F32 middle = to_float(has_sign ? byte & 0x7F : byte) + 0.5f;
    const I32 exponent = bits_of(middle) >> 23;
    const F32 magnitude = fma(slope[exponent], middle, offset[exponent]) * scale;
    if constexpr (has_sign) {
      const I32 value = bits_of(magnitude) ^ ((byte & 0x80) << 24);  // a scale may be negative
      return from_bits(choose(equal(byte, 0x80), bits_of(scale), value));
    } else {
      return kLanes == 8 ? from_bits(only(not_zero(byte), bits_of(magnitude))) : magnitude;
    }
  }

  [[gnu::always_inline]] inline void run(const unsigned char* codes, float scale, float* to) const {
    for (int i = 0; i < kInt8Block; i += kLanes) store(to + i, value(load_bytes(codes + i), splat(scale)));
  }
};

template <bool has_sign>
struct Encoder {
  Decades decades{code_of<has_sign>()};
  Table slope{code_of<has_sign>().byte_slope}, offset{code_of<has_sign>().byte_offset},
      last{code_of<has_sign>().byte_last};

  [[gnu::always_inline]] inline I32 byte(F32 x) const {
    constexpr const DynamicCode& code = code_of<has_sign>();
    F32 magnitude;
    if constexpr (has_sign)
      magnitude = max(abs(x), splat(0x1p-24f));
    else
      magnitude = from_bits(only(not_zero(bits_of(x)), bits_of(max(x, splat(code.least[1])))));
    const I32 decade = decades.of(magnitude);
    I32 byte = whole_part(min(fma(slope[decade], magnitude, offset[decade]), last[decade]));
    if constexpr (has_sign) byte |= only(not_zero(byte), (bits_of(x) >> 24) & 0x80);
    return choose(at_least(x, splat(code.least_one)), I32{} + code.one, byte);
  }

  /// The element farthest from 0, with its sign; of two that differ in sign alone the positive one.
  [[gnu::always_inline]] inline float farthest(const float* from) const {
    F32 most[4] = {}, least[4] = {};  // not one, each of which would wait for the one before
    for (int i = 0; i < kInt8Block; i += 4 * kLanes)
      for (int k = 0; k < 4; ++k) {
        const F32 x = load(from + i + k * kLanes);
        most[k] = max(most[k], x);
        if constexpr (has_sign) least[k] = min(least[k], x);
      }
    const float above = largest(max(max(most[0], most[1]), max(most[2], most[3])));
    if constexpr (!has_sign) return above;
    const float below = largest(-min(min(least[0], least[1]), min(least[2], least[3])));
    return below > above ? -below : above;
  }

  [[gnu::always_inline]] inline float run(const float* from, unsigned char* codes) const {
    const float found = farthest(from);
    const float scale = found > kLargestScale ? kLargestScale : found < -kLargestScale ? -kLargestScale : found;
    const bool normal = scale >= kLeastScale || scale <= -kLeastScale;
    const F32 by = splat(normal ? 1.0f / scale : 0.0f);
    for (int i = 0; i < kInt8Block; i += kLanes) store_bytes(codes + i, byte(load(from + i) * by));
    return normal ? scale : 0.0f;
  }
};

/// body(block, its elements); a short block has its bytes in a whole one of its own.
template <typename Body>
VEC_INLINE void for_each_block(std::int64_t count, Body body) {
  const std::int64_t whole = count / kInt8Block;
  for (std::int64_t block = 0; block < whole; ++block) body(block, kInt8Block);
  if (whole * kInt8Block < count) body(whole, count - whole * kInt8Block);
}

template <bool has_sign>
void decode(const unsigned char* codes, const float* scales, float* to, std::int64_t count) {
  const Decoder<has_sign> decoder;
  for_each_block(count, [&](std::int64_t block, std::int64_t elements) {
    const unsigned char* from = codes + block * kInt8Block;
    unsigned char padded[kInt8Block];
    if (elements < kInt8Block) {
      __builtin_memset(padded, 0, sizeof padded);
      __builtin_memcpy(padded, from, static_cast<std::size_t>(elements));
      from = padded;
    }
    decoder.run(from, scales[block], to + block * kInt8Block);
  });
}

template <bool has_sign>
void encode(const float* from, unsigned char* codes, float* scales, std::int64_t count) {
  const Encoder<has_sign> encoder;
  for_each_block(count, [&](std::int64_t block, std::int64_t elements) {
    unsigned char* to = codes + block * kInt8Block;
    unsigned char padded[kInt8Block];
    scales[block] = encoder.run(from + block * kInt8Block, elements < kInt8Block ? padded : to);
    if (elements < kInt8Block) __builtin_memcpy(to, padded, static_cast<std::size_t>(elements));
  });
}

}  // namespace

void widen_state(const Bf16* from, float* to, std::int64_t count) {
  for_each_vector(0, count,
                  [&](std::int64_t i, auto load_any, auto store_any) { store_any(to + i, load_any(from + i)); });
}

void round_state(const float* from, Bf16* to, std::int64_t count, std::uint32_t key) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    store_upper(to + i, rounded_stochastically((U32)bits_of(load(from + i)), key));
  for (; i < count; ++i)
    to[i].bits =
        static_cast<std::uint16_t>(rounded_stochastically(__builtin_bit_cast(std::uint32_t, from[i]), key) >> 16);
}

void decode_state(bool has_sign, const unsigned char* codes, const float* scales, float* to, std::int64_t count) {
  has_sign ? decode<true>(codes, scales, to, count) : decode<false>(codes, scales, to, count);
}

void encode_state(bool has_sign, const float* from, unsigned char* codes, float* scales, std::int64_t count) {
  has_sign ? encode<true>(from, codes, scales, count) : encode<false>(from, codes, scales, count);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
