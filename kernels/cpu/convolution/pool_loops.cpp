// Loops file (vec.h). A row of outputs is one vector after another: of each tap of the window, the places under all
// lanes are loaded, `stride` apart. Outputs whose window is cut off at the left or right go one by one, and so does
// everything where the stride is above 2.
#include "kernels/cpu/convolution/pool_loops.h"

#include "kernels/cpu/convolution/rounded.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

struct Span {
  std::int64_t begin, end;
};

VEC_INLINE std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
VEC_INLINE std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

/// The part of [0, size) that window `out` covers.
VEC_INLINE Span cover(const PoolPlane& s, std::int64_t out, std::int64_t size) {
  const std::int64_t start = out * s.stride - s.padding;
  return {most(start, 0), least(start + s.kernel, size)};
}

/// The outputs of a row whose windows lie in it from left to right.
VEC_INLINE Span whole_windows(const PoolPlane& s) {
  const std::int64_t last = s.w + s.padding - s.kernel;  // the last start of one, counted from the padding
  return {least((s.padding + s.stride - 1) / s.stride, s.ow), last < 0 ? 0 : least(last / s.stride + 1, s.ow)};
}

/// Lanes 0, 2, 4, … of a, then 1, 3, 5, … of b.
VEC_INLINE F32 even_then_odd(F32 a, F32 b) {
#if defined(__AVX512F__)
  const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31);
  return (F32)_mm512_permutex2var_ps((__m512)a, order, (__m512)b);
#elif defined(__AVX2__)
  const __m256 mixed = _mm256_shuffle_ps((__m256)a, (__m256)b, _MM_SHUFFLE(3, 1, 2, 0));  // a0 a2 b1 b3, a4 a6 b5 b7
  return (F32)_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), _MM_SHUFFLE(3, 1, 2, 0)));
#else
  return F32{a[0], a[2], b[1], b[3]};
#endif
}

/// Elements 0, kStride, 2 kStride, … of p, as many as there are lanes. Reads none behind the last of them.
template <int kStride, typename T>
VEC_INLINE F32 strided(const T* p) {
  if constexpr (kStride == 1) return load(p);
  return even_then_odd(load(p), load(p + kLanes - 1));
}
template <int kStride, typename T>
VEC_INLINE F32 strided(const T* p, int n) {
  if constexpr (kStride == 1) return load_first(p, n);
  const int elements = 2 * n - 1;  // of which the second load begins with number kLanes − 1
  if (elements < kLanes) return even_then_odd(load_first(p, elements), F32{});
  return even_then_odd(load(p), load_first(p + kLanes - 1, elements - kLanes + 1));
}

/// Largest values and their places: each tap of the window against what was found so far.
template <typename T>
struct Max {
  const PoolPlane& s;
  const T* x;
  T* y;
  std::int32_t* index;

  template <int kStride, typename Load, typename Store>
  [[gnu::always_inline]] inline void vector(std::int64_t row, std::int64_t column, Load load_tap, Store store_all) {
    const Span rows = cover(s, row, s.h);
    const std::int64_t left = column * kStride - s.padding;
    const I32 lanes = (I32)count_from(0) * kStride;
    F32 largest{};
    I32 places{};
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      for (std::int64_t at = r * s.w + left; at < r * s.w + left + s.kernel; ++at) {
        const F32 value = load_tap(x + at);
        const I32 begins = I32{} - (at == rows.begin * s.w + left);
        const I32 wins = begins | (value > largest) | ((value != value) & (largest == largest));
        largest = select(wins, value, largest);
        places = (places & ~wins) | ((lanes + static_cast<std::int32_t>(at)) & wins);
      }
    store_all(y + row * s.ow + column, largest);
    store_all(reinterpret_cast<float*>(index + row * s.ow + column), from_bits(places));
  }

  [[gnu::always_inline]] inline void one(std::int64_t row, std::int64_t column) {
    const Span rows = cover(s, row, s.h), columns = cover(s, column, s.w);
    std::int64_t best = rows.begin * s.w + columns.begin;
    float largest = to_f32(x[best]);
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      for (std::int64_t c = columns.begin; c < columns.end; ++c) {
        const float value = to_f32(x[r * s.w + c]);
        if (value > largest || (value != value && largest == largest)) largest = value, best = r * s.w + c;
      }
    y[row * s.ow + column] = x[best];
    index[row * s.ow + column] = static_cast<std::int32_t>(best);
  }
};

/// Sums of windows over kernel².
template <typename T>
struct Average {
  const PoolPlane& s;
  const T* x;
  T* y;
  float scale;

  template <int kStride, typename Load, typename Store>
  [[gnu::always_inline]] inline void vector(std::int64_t row, std::int64_t column, Load load_tap, Store store_all) {
    const Span rows = cover(s, row, s.h);
    const std::int64_t left = column * kStride - s.padding;
    F32 sum{};
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      for (std::int64_t c = 0; c < s.kernel; ++c) sum += load_tap(x + r * s.w + left + c);
    store_all(y + row * s.ow + column, sum * splat(scale));
  }

  [[gnu::always_inline]] inline void one(std::int64_t row, std::int64_t column) {
    const Span rows = cover(s, row, s.h), columns = cover(s, column, s.w);
    float sum = 0;
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      for (std::int64_t c = columns.begin; c < columns.end; ++c) sum += to_f32(x[r * s.w + c]);
    y[row * s.ow + column] = rounded_as(sum * scale, y);
  }
};

template <int kStride, typename T, typename Pool>
VEC_INLINE void pool_whole(Pool& pool, std::int64_t row, Span columns) {
  std::int64_t column = columns.begin;
  for (; column + kLanes <= columns.end; column += kLanes)
    pool.template vector<kStride>(
        row, column, [](const T* p) __attribute__((always_inline)) { return strided<kStride>(p); },
        [](auto* p, F32 v) __attribute__((always_inline)) { store(p, v); });
  if (column < columns.end) {
    const int left = static_cast<int>(columns.end - column);
    pool.template vector<kStride>(
        row, column, [left](const T* p) __attribute__((always_inline)) { return strided<kStride>(p, left); },
        [left](auto* p, F32 v) __attribute__((always_inline)) { store_first(p, v, left); });
  }
}

template <typename T, typename Pool>
VEC_INLINE void pool_plane(const PoolPlane& s, Pool pool) {
  const Span whole = s.stride <= 2 ? whole_windows(s) : Span{0, 0};
  for (std::int64_t row = 0; row < s.oh; ++row) {
    for (std::int64_t column = 0; column < whole.begin; ++column) pool.one(row, column);
    if (s.stride == 1) pool_whole<1, T>(pool, row, whole);
    if (s.stride == 2) pool_whole<2, T>(pool, row, whole);
    for (std::int64_t column = most(whole.begin, whole.end); column < s.ow; ++column) pool.one(row, column);
  }
}

template <typename T>
void max_of(const PoolPlane& s, const void* x, void* y, std::int32_t* index) {
  pool_plane<T>(s, Max<T>{s, static_cast<const T*>(x), static_cast<T*>(y), index});
}

template <typename T>
void average_of(const PoolPlane& s, const void* x, void* y) {
  const float scale = 1.0f / static_cast<float>(s.kernel * s.kernel);
  pool_plane<T>(s, Average<T>{s, static_cast<const T*>(x), static_cast<T*>(y), scale});
}

/// Each slope goes to the place of its value. Those that meet at a place are summed in f32, in the order of the
/// windows.
template <typename T>
void max_grad_of(const PoolPlane& s, const T* dy, const std::int32_t* index, T* dx) {
  __builtin_memset(dx, 0, static_cast<std::size_t>(s.h * s.w) * sizeof(T));
  for (std::int64_t i = 0; i < s.oh * s.ow; ++i) dx[index[i]] = dy[i];
}

void add_slopes(const PoolPlane& s, const auto* dy, const std::int32_t* index, float* sums) {
  __builtin_memset(sums, 0, static_cast<std::size_t>(s.h * s.w) * sizeof(float));
  for (std::int64_t i = 0; i < s.oh * s.ow; ++i) sums[index[i]] += to_f32(dy[i]);
}

}  // namespace

void max_pool_plane(const PoolPlane& plane, const void* x, void* y, std::int32_t* index) {
  (plane.bf16 ? max_of<Bf16> : max_of<float>)(plane, x, y, index);
}

void average_pool_plane(const PoolPlane& plane, const void* x, void* y) {
  (plane.bf16 ? average_of<Bf16> : average_of<float>)(plane, x, y);
}

void max_pool_grad_plane(const PoolPlane& plane, const void* dy, const std::int32_t* index, void* dx, float* sums) {
  if (!plane.bf16) {
    const auto* from = static_cast<const float*>(dy);
    auto* to = static_cast<float*>(dx);
    plane.overlaps() ? add_slopes(plane, from, index, to) : max_grad_of(plane, from, index, to);
    return;
  }
  const auto* from = static_cast<const Bf16*>(dy);
  auto* to = static_cast<Bf16*>(dx);
  if (!plane.overlaps()) return max_grad_of(plane, from, index, to);
  add_slopes(plane, from, index, sums);
  for_each_vector(0, plane.h * plane.w, [&](std::int64_t i, auto load, auto store) { store(to + i, load(sums + i)); });
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
