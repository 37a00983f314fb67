// Loops file (vec.h). A channel's elements are runs of `places`, one a sample, or with one place columns of rows. A
// channel's sums have one order, whoever computes them.
#include "kernels/cpu/norm/batch_norm_loops.h"

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr int kHalf = kLanes / 2;
using F64 = double __attribute__((vector_size(8 * kHalf)));

#if defined(__AVX512F__)
VEC_INLINE F64 low_half(F32 x) { return (F64)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)); }
VEC_INLINE F64 high_half(F32 x) { return (F64)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1)); }
#elif defined(__AVX2__)
VEC_INLINE F64 low_half(F32 x) { return (F64)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)); }
VEC_INLINE F64 high_half(F32 x) { return (F64)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1)); }
#else
VEC_INLINE F64 low_half(F32 x) { return F64{static_cast<double>(x[0]), static_cast<double>(x[1])}; }
VEC_INLINE F64 high_half(F32 x) { return F64{static_cast<double>(x[2]), static_cast<double>(x[3])}; }
#endif

/// Two sums in f64, in lanes.
struct Sums {
  F64 first[2] = {}, second[2] = {};

  /// Adds a, and a · b.
  [[gnu::always_inline]] inline void add(F64 a, F64 b, int half) {
    first[half] += a;
    second[half] += a * b;
  }
  [[gnu::always_inline]] static inline double total(const F64 (&halves)[2]) {
    const F64 both = halves[0] + halves[1];
    double sum = 0;
    for (int i = 0; i < kHalf; ++i) sum += both[i];
    return sum;
  }
};

/// Runs body(channel − begin, the channel's run in an array of T) for each channel, sample by sample.
template <typename Body>
VEC_INLINE void each_run(const ChannelArgs& args, std::int64_t begin, std::int64_t end, Body body) {
  for (std::int64_t n = 0; n < args.samples; ++n)
    for (std::int64_t c = begin; c < end; ++c) body(c - begin, (n * args.channels + c) * args.places);
}

template <typename T>
void sums_of(const ChannelArgs& args, const double* centre, double* first, double* second, std::int64_t begin,
             std::int64_t end) {
  const T *x = static_cast<const T*>(args.x), *dy = static_cast<const T*>(args.dy);
  for (std::int64_t c = begin; c < end; ++c) {
    Sums sums;
    const F64 about = F64{} + (dy != nullptr ? centre[c - begin] : 0.0);
    for (std::int64_t n = 0; n < args.samples; ++n) {
      const std::int64_t run = (n * args.channels + c) * args.places;
      for_each_vector(0, args.places, [&](std::int64_t i, auto load, auto) {
        const F32 value = load(x + run + i);
        if (dy == nullptr) {
          sums.add(low_half(value), low_half(value), 0);
          sums.add(high_half(value), high_half(value), 1);
        } else {
          const F32 slope = load(dy + run + i);
          sums.add(low_half(slope), low_half(value) - about, 0);
          sums.add(high_half(slope), high_half(value) - about, 1);
        }
      });
    }
    first[c - begin] = Sums::total(sums.first);
    second[c - begin] = Sums::total(sums.second);
  }
}

/// With one place: down the rows, vectors of channels side by side.
template <typename T>
void sums_of_columns(const ChannelArgs& args, const double* centre, double* first, double* second, std::int64_t begin,
                     std::int64_t end) {
  const T *x = static_cast<const T*>(args.x), *dy = static_cast<const T*>(args.dy);
  for (std::int64_t c = begin; c < end; ++c) first[c - begin] = second[c - begin] = 0;
  for (std::int64_t n = 0; n < args.samples; ++n)
    for (std::int64_t c = begin; c < end; ++c) {
      const double value = static_cast<double>(to_f32(x[n * args.channels + c]));
      const double factor = dy != nullptr ? static_cast<double>(to_f32(dy[n * args.channels + c])) : value;
      first[c - begin] += factor;
      second[c - begin] += factor * (dy != nullptr ? value - centre[c - begin] : value);
    }
}

template <typename T>
void scale_of(const ChannelArgs& args, const float* centre, const float* scale, const float* shift, std::int64_t begin,
              std::int64_t end) {
  const T* x = static_cast<const T*>(args.x);
  T* to = static_cast<T*>(args.to);
  if (args.places == 1) {
    for (std::int64_t n = 0; n < args.samples; ++n) {
      const std::int64_t row = n * args.channels + begin;
      for_each_vector(0, end - begin, [&](std::int64_t i, auto load, auto store) {
        store(to + row + i, fma(load(x + row + i) - load(centre + i), load(scale + i), load(shift + i)));
      });
    }
    return;
  }
  each_run(
      args, begin, end, [&](std::int64_t c, std::int64_t run) __attribute__((always_inline)) {
        const F32 about = splat(centre[c]), factor = splat(scale[c]), term = splat(shift[c]);
        for_each_vector(0, args.places, [&](std::int64_t i, auto load, auto store) {
          store(to + run + i, fma(load(x + run + i) - about, factor, term));
        });
      });
}

template <typename T>
void combine_of(const ChannelArgs& args, const float* centre, const float* scale, const float* slope,
                const float* shift, std::int64_t begin, std::int64_t end) {
  const T *x = static_cast<const T*>(args.x), *dy = static_cast<const T*>(args.dy);
  T* to = static_cast<T*>(args.to);
  if (args.places == 1) {
    for (std::int64_t n = 0; n < args.samples; ++n) {
      const std::int64_t row = n * args.channels + begin;
      for_each_vector(0, end - begin, [&](std::int64_t i, auto load, auto store) {
        const F32 rest = fma(load(x + row + i) - load(centre + i), load(slope + i), load(shift + i));
        store(to + row + i, fma(load(dy + row + i), load(scale + i), rest));
      });
    }
    return;
  }
  each_run(
      args, begin, end, [&](std::int64_t c, std::int64_t run) __attribute__((always_inline)) {
        const F32 about = splat(centre[c]), factor = splat(scale[c]), along = splat(slope[c]), term = splat(shift[c]);
        for_each_vector(0, args.places, [&](std::int64_t i, auto load, auto store) {
          store(to + run + i, fma(load(dy + run + i), factor, fma(load(x + run + i) - about, along, term)));
        });
      });
}

}  // namespace

void channel_sums(const ChannelArgs& args, double* first, double* second, std::int64_t begin, std::int64_t end) {
  channel_products(args, nullptr, first, second, begin, end);
}

void channel_products(const ChannelArgs& args, const double* centre, double* first, double* second, std::int64_t begin,
                      std::int64_t end) {
  const bool columns = args.places == 1;
  if (args.bf16)
    (columns ? sums_of_columns<Bf16> : sums_of<Bf16>)(args, centre, first, second, begin, end);
  else
    (columns ? sums_of_columns<float> : sums_of<float>)(args, centre, first, second, begin, end);
}

void scale_channels(const ChannelArgs& args, const float* centre, const float* scale, const float* shift,
                    std::int64_t begin, std::int64_t end) {
  (args.bf16 ? scale_of<Bf16> : scale_of<float>)(args, centre, scale, shift, begin, end);
}

void combine_channels(const ChannelArgs& args, const float* centre, const float* scale, const float* slope,
                      const float* shift, std::int64_t begin, std::int64_t end) {
  (args.bf16 ? combine_of<Bf16> : combine_of<float>)(args, centre, scale, slope, shift, begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
