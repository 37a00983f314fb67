// Loops file (vec.h).
#include "kernels/cpu/compression/top_k_loops.h"

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr std::int32_t kSize = 0x7FFFFFFF, kInfinity = 0x7F800000;

VEC_INLINE std::int32_t key_of(float x) { return __builtin_bit_cast(std::int32_t, x) & kSize; }
VEC_INLINE I32 keys_of(F32 x) { return bits_of(x) & kSize; }

/// Bit l is set where lane l of the mask is.
#if defined(__AVX512F__)
VEC_INLINE unsigned lanes_of(I32 mask) { return _mm512_movepi32_mask((__m512i)mask); }
#elif defined(__AVX2__)
VEC_INLINE unsigned lanes_of(I32 mask) { return static_cast<unsigned>(_mm256_movemask_ps((__m256)mask)); }
#else
VEC_INLINE unsigned lanes_of(I32 mask) {
  unsigned bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= (mask[i] ? 1u : 0u) << i;
  return bits;
}
#endif

/// The lanes of x that are set, one after the other, and their places; up to kLanes more are written.
#if defined(__AVX512F__)
VEC_INLINE void append(const Candidates& to, std::int64_t at, F32 x, unsigned lanes, std::int64_t place) {
  const auto mask = static_cast<__mmask16>(lanes);
  store(to.values + at, (F32)_mm512_maskz_compress_ps(mask, (__m512)x));
  const U32 places = count_from(static_cast<std::uint32_t>(place));
  _mm512_storeu_si512(to.index + at, _mm512_maskz_compress_epi32(mask, (__m512i)places));
}
#else
VEC_INLINE void append(const Candidates& to, std::int64_t at, F32 x, unsigned lanes, std::int64_t place) {
  float values[kLanes];
  store(values, x);
  for (; lanes != 0; lanes &= lanes - 1, ++at) {
    const int lane = __builtin_ctz(lanes);
    to.values[at] = values[lane];
    to.index[at] = static_cast<std::int32_t>(place + lane);
  }
}
#endif

/// use(place) for those in [0, count) of which `wanted(keys)` holds, in order.
template <typename Wanted, typename Use>
VEC_INLINE void for_each_wanted(const float* values, std::int64_t count, Wanted wanted, Use use) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const bool whole = i + kLanes <= count;
    const F32 x = whole ? load(values + i) : load_first(values + i, static_cast<int>(count - i));
    unsigned lanes = lanes_of(wanted(keys_of(x)));
    if (!whole) lanes &= (1u << (count - i)) - 1u;
    for (; lanes != 0; lanes &= lanes - 1) use(i + __builtin_ctz(lanes));
  }
}

template <typename G>
std::int64_t sample_of(const G* gradient, const float* residual, std::int64_t begin, std::int64_t end,
                       std::int64_t stride, float* values) {
  std::int64_t count = 0;
  for (std::int64_t at = begin; at + 16 <= end; at += stride)
    for (std::int64_t i = 0; i < 16; i += kLanes, count += kLanes)
      store(values + count, load(gradient + at + i) + load(residual + at + i));
  return count;
}

template <typename G>
std::int64_t collect_of(const G* gradient, float* residual, std::int64_t begin, std::int64_t end, std::int32_t floor,
                        const Candidates& to, std::int64_t capacity) {
  const I32 least = I32{} + floor;
  std::int64_t count = 0;
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) {
    const F32 a = load(gradient + i) + load(residual + i);
    store(residual + i, a);
    const unsigned lanes = lanes_of(keys_of(a) >= least);
    if (lanes == 0) return;
    if (count < capacity) append(to, count, a, lanes, i);
    count += __builtin_popcount(lanes);
  });
  return count;
}

}  // namespace

std::int64_t sample_sums(bool bf16, const void* gradient, const float* residual, std::int64_t begin, std::int64_t end,
                         std::int64_t stride, float* values) {
  if (bf16) return sample_of(static_cast<const Bf16*>(gradient), residual, begin, end, stride, values);
  return sample_of(static_cast<const float*>(gradient), residual, begin, end, stride, values);
}

std::int64_t add_and_collect(bool bf16, const void* gradient, float* residual, std::int64_t begin, std::int64_t end,
                             std::int32_t floor, const Candidates& to, std::int64_t capacity) {
  if (bf16) return collect_of(static_cast<const Bf16*>(gradient), residual, begin, end, floor, to, capacity);
  return collect_of(static_cast<const float*>(gradient), residual, begin, end, floor, to, capacity);
}

void count_digits(const Candidates& from, const Digit& digit, std::uint32_t* histogram) {
  const auto count = [&](std::int64_t i) {
    ++histogram[(static_cast<std::uint32_t>(key_of(from.values[i])) >> digit.shift) & digit.mask];
  };
  if (digit.prefix_shift >= 31) {
    for (std::int64_t i = 0; i < from.count; ++i) count(i);
    return;
  }
  const I32 prefix = I32{} + static_cast<std::int32_t>(digit.prefix);
  for_each_wanted(
      from.values,
      from.count, [&](I32 keys) __attribute__((always_inline)) { return (keys >> digit.prefix_shift) == prefix; },
      count);
}

void hand_out(const Candidates& from, std::int32_t threshold, std::int64_t ties, Pairs to, float* residual) {
  const I32 least = I32{} + threshold;
  for_each_wanted(
      from.values, from.count, [&](I32 keys) __attribute__((always_inline)) { return keys >= least; },
      [&](std::int64_t i) {
        const float value = from.values[i];
        if (key_of(value) == threshold && ties-- <= 0) return;
        const std::int64_t place = from.index != nullptr ? from.index[i] : from.base + i;
        *to.index++ = static_cast<std::int32_t>(place);
        *to.value++ = value;
        residual[place] = 0;
      });
}

void clear_not_finite(float* x, std::int64_t begin, std::int64_t end) {
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) {
    const F32 value = load(x + i);
    store(x + i, select(keys_of(value) < kInfinity, value, F32{}));
  });
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
