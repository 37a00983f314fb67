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

/// max(z, 0); NaN passes.
VEC_INLINE F32 relu(F32 z) { return select(z < F32{}, F32{}, z); }
/// The gradient of z where y = max(z, 0).
VEC_INLINE F32 relu_grad(F32 dy, F32 z) { return select(z <= F32{}, F32{}, dy); }

/// Σ x and Σ x² without dy.
template <typename T, bool Relu>
void sums_of(const ChannelArgs& args, const ChannelScales& y, const double* centre, double* first, double* second,
             std::int64_t begin, std::int64_t end) {
  const T *x = static_cast<const T*>(args.x), *dy = static_cast<const T*>(args.dy);
  for (std::int64_t c = 0; c < end - begin; ++c) {
    Sums sums;
    const F64 about = F64{} + (dy != nullptr ? centre[c] : 0.0);
    F32 y_centre = {}, scale = {}, shift = {};
    if constexpr (Relu) y_centre = splat(y.centre[c]), scale = splat(y.scale[c]), shift = splat(y.shift[c]);
    for (std::int64_t n = 0; n < args.samples; ++n) {
      const std::int64_t run = (n * args.channels + begin + c) * args.places;
      for_each_vector(0, args.places, [&](std::int64_t i, auto load, auto) {
        const F32 value = load(x + run + i);
        if (dy == nullptr) {
          sums.add(low_half(value), low_half(value), 0);
          sums.add(high_half(value), high_half(value), 1);
        } else {
          F32 slope = load(dy + run + i);
          if constexpr (Relu) slope = relu_grad(slope, fma(value - y_centre, scale, shift));
          sums.add(low_half(slope), low_half(value) - about, 0);
          sums.add(high_half(slope), high_half(value) - about, 1);
        }
      });
    }
    first[c] = Sums::total(sums.first);
    second[c] = Sums::total(sums.second);
  }
}

/// With one place: down the rows, vectors of channels side by side.
template <typename T, bool Relu>
void sums_of_columns(const ChannelArgs& args, const ChannelScales& y, const double* centre, double* first,
                     double* second, std::int64_t begin, std::int64_t end) {
  const T *x = static_cast<const T*>(args.x), *dy = static_cast<const T*>(args.dy);
  for (std::int64_t c = 0; c < end - begin; ++c) first[c] = second[c] = 0;
  for (std::int64_t n = 0; n < args.samples; ++n)
    for (std::int64_t c = 0; c < end - begin; ++c) {
      const std::int64_t at = n * args.channels + begin + c;
      const float value = to_f32(x[at]);
      float slope = dy != nullptr ? to_f32(dy[at]) : value;
      if constexpr (Relu) {  // by the vectors' multiply-add, which scale_of rounds by
        const F32 z = fma(splat(value - y.centre[c]), splat(y.scale[c]), splat(y.shift[c]));
        slope = relu_grad(splat(slope), z)[0];
      }
      first[c] += static_cast<double>(slope);
      second[c] += static_cast<double>(slope) * (static_cast<double>(value) - (dy != nullptr ? centre[c] : 0.0));
    }
}

/// Calls fn(place in an array of T, load, store, numbers…) for the vectors of all runs, or with one place of all rows:
/// of each of `arrays`, which have a number for each channel, the vector of those of the elements.
template <typename Fn, typename... Arrays>
VEC_INLINE void each_vector(const ChannelArgs& args, std::int64_t begin, std::int64_t end, Fn fn, Arrays... arrays) {
  for (std::int64_t n = 0; n < args.samples; ++n) {
    const std::int64_t row = n * args.channels + begin;
    if (args.places == 1) {
      for_each_vector(0, end - begin,
                      [&](std::int64_t i, auto load, auto store) { fn(row + i, load, store, load(arrays + i)...); });
      continue;
    }
    const auto along_run = [&](std::int64_t run, auto... numbers) __attribute__((always_inline)) {
      for_each_vector(0, args.places,
                      [&](std::int64_t i, auto load, auto store) { fn(run + i, load, store, numbers...); });
    };
    for (std::int64_t c = 0; c < end - begin; ++c) along_run((row + c) * args.places, splat(arrays[c])...);
  }
}

template <typename T, bool Residual, bool Relu>
void scale_of(const ChannelArgs& args, const ChannelScales& of, std::int64_t begin, std::int64_t end) {
  const T *x = static_cast<const T*>(args.x), *residual = static_cast<const T*>(args.residual);
  T* to = static_cast<T*>(args.to);
  const auto step = [&](std::int64_t i, auto load, auto store, F32 centre, F32 scale, F32 shift)
      __attribute__((always_inline)) {
    F32 z = fma(load(x + i) - centre, scale, shift);
    if constexpr (Residual) z += load(residual + i);
    store(to + i, Relu ? relu(z) : z);
  };
  each_vector(args, begin, end, step, of.centre, of.scale, of.shift);
}

template <typename T, bool Relu>
void combine_of(const ChannelArgs& args, const ChannelScales& of, const float* slope, const float* term,
                std::int64_t begin, std::int64_t end) {
  const T *x = static_cast<const T*>(args.x), *dy = static_cast<const T*>(args.dy);
  T* to = static_cast<T*>(args.to);
  const auto step = [&](std::int64_t i, auto load, auto store, F32 centre, F32 scale, F32 shift, F32 along, F32 rest)
      __attribute__((always_inline)) {
    const F32 about = load(x + i) - centre;
    F32 gradient = load(dy + i);
    if constexpr (Relu) gradient = relu_grad(gradient, fma(about, scale, shift));
    store(to + i, fma(gradient, scale, fma(about, along, rest)));
  };
  each_vector(args, begin, end, step, of.centre, of.scale, of.shift, slope, term);
}

template <typename T, bool Relu>
void products_of(const ChannelArgs& args, const ChannelScales& y, const double* centre, double* first, double* second,
                 std::int64_t begin, std::int64_t end) {
  (args.places == 1 ? sums_of_columns<T, Relu> : sums_of<T, Relu>)(args, y, centre, first, second, begin, end);
}

template <typename T>
void scale_with(const ChannelArgs& args, const ChannelScales& y, std::int64_t begin, std::int64_t end) {
  if (args.residual != nullptr)
    (args.relu ? scale_of<T, true, true> : scale_of<T, true, false>)(args, y, begin, end);
  else
    (args.relu ? scale_of<T, false, true> : scale_of<T, false, false>)(args, y, begin, end);
}

}  // namespace

void channel_sums(const ChannelArgs& args, double* first, double* second, std::int64_t begin, std::int64_t end) {
  (args.bf16 ? products_of<Bf16, false> : products_of<float, false>)(args, {}, nullptr, first, second, begin, end);
}

void channel_products(const ChannelArgs& args, const ChannelScales& y, const double* centre, double* first,
                      double* second, std::int64_t begin, std::int64_t end) {
  if (args.bf16)
    (args.relu ? products_of<Bf16, true> : products_of<Bf16, false>)(args, y, centre, first, second, begin, end);
  else
    (args.relu ? products_of<float, true> : products_of<float, false>)(args, y, centre, first, second, begin, end);
}

void scale_channels(const ChannelArgs& args, const ChannelScales& y, std::int64_t begin, std::int64_t end) {
  (args.bf16 ? scale_with<Bf16> : scale_with<float>)(args, y, begin, end);
}

void combine_channels(const ChannelArgs& args, const ChannelScales& y, const float* slope, const float* term,
                      std::int64_t begin, std::int64_t end) {
  if (args.bf16)
    (args.relu ? combine_of<Bf16, true> : combine_of<Bf16, false>)(args, y, slope, term, begin, end);
  else
    (args.relu ? combine_of<float, true> : combine_of<float, false>)(args, y, slope, term, begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
