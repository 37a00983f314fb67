// Rows of a head between the operands, where a head's tokens lie a whole row of all heads apart, and scratch, where
// they are dense f32: widened and turned by RoPE on the way in, turned back, scaled and narrowed on the way out. For
// loops files only.
#pragma once

#include "kernels/cpu/attention/tiles.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {

template <int n>
struct Count {
  static constexpr int value = n;
};

/// Calls column(d, load, store, Count) for Count whole vectors of [0, dims) at a time, 4 or 1 of them, and once for
/// what is left.
template <typename Column>
VEC_INLINE void for_each_column(int dims, Column column) {
  constexpr auto whole_load = [](const auto* p) __attribute__((always_inline)) { return load(p); };
  constexpr auto whole_store = [](auto* p, F32 x) __attribute__((always_inline)) { store(p, x); };
  int d = 0;
  for (; d + 4 * kLanes <= dims; d += 4 * kLanes) column(d, whole_load, whole_store, Count<4>{});
  for (; d + kLanes <= dims; d += kLanes) column(d, whole_load, whole_store, Count<1>{});
  if (const int left = dims - d; left > 0)
    column(
        d, [left](const auto* p) __attribute__((always_inline)) { return load_first(p, left); },
        [left](auto* p, F32 x) __attribute__((always_inline)) { store_first(p, x, left); }, Count<1>{});
}

VEC_INLINE void zero_row(float* row, int begin, int end) {
  for (int i = begin; i < end; ++i) row[i] = 0;
}

/// Row i of `to` = row i of `from` turned by row i of `rotation` (dims/2 cosines, then sines).
template <typename T, typename U>
void turn_rows(const T* from, std::int64_t stride, int count, int dims, const float* rotation, U* to, int width) {
  const int half = dims / 2;
  for_each_column(
      half, [=](int d, auto ld, auto st, auto vecs) __attribute__((always_inline)) {
        for (int i = 0; i < count; ++i)
#pragma GCC unroll 4
          for (int v = 0; v < vecs.value; ++v) {
            const int j = d + v * kLanes;
            const F32 x = ld(from + i * stride + j), y = ld(from + i * stride + half + j);
            const F32 c = ld(rotation + i * dims + j), s = ld(rotation + i * dims + half + j);
            st(to + i * width + j, x * c - y * s);
            st(to + i * width + half + j, y * c + x * s);
          }
      });
}

/// Row i of `to`, `width` floats apart, = row i of `from`, `stride` elements apart, turned where `rotation` is not
/// null. Whole vectors are written, 0 beyond `dims`. Rows from row `begin` of `to` on; those before are zeros, as are
/// those after up to a multiple of 16.
template <typename T>
void pack_rows(const T* from, std::int64_t stride, int count, int dims, int width, const float* rotation, float* to,
               int begin = 0) {
  zero_row(to, 0, begin * width);
  to += begin * width;
  if (rotation == nullptr) {
    for_each_column(
        dims, [=](int d, auto ld, auto, auto vecs) __attribute__((always_inline)) {
          for (int i = 0; i < count; ++i)
#pragma GCC unroll 4
            for (int v = 0; v < vecs.value; ++v)
              store(to + i * width + d + v * kLanes, ld(from + i * stride + d + v * kLanes));
        });
  } else {
    turn_rows(from, stride, count, dims, rotation, to, width);
    if (dims % kLanes != 0)
      for (int i = 0; i < count; ++i) zero_row(to + i * width, dims, vecs_of(dims) * kLanes);
  }
  for (int i = count; i < round_up_16(begin + count) - begin; ++i) zero_row(to + i * width, 0, width);
}

/// Row i of `to` = scale_of(i) · row i of `from`, turned back by row i of `rotation` where it is not null.
template <typename T, typename ScaleOf>
void unpack_rows(const float* from, int width, int count, int dims, const float* rotation, ScaleOf scale_of, T* to,
                 std::int64_t stride) {
  const int half = dims / 2;
  if (rotation == nullptr) {
    for_each_column(
        dims, [=](int d, auto ld, auto st, auto vecs) __attribute__((always_inline)) {
          for (int i = 0; i < count; ++i) {
            const F32 scale = splat(scale_of(i));
#pragma GCC unroll 4
            for (int v = 0; v < vecs.value; ++v)
              st(to + i * stride + d + v * kLanes, ld(from + i * width + d + v * kLanes) * scale);
          }
        });
    return;
  }
  for_each_column(
      half, [=](int d, auto ld, auto st, auto vecs) __attribute__((always_inline)) {
        for (int i = 0; i < count; ++i) {
          const F32 scale = splat(scale_of(i));
#pragma GCC unroll 4
          for (int v = 0; v < vecs.value; ++v) {
            const int j = d + v * kLanes;
            const F32 x = ld(from + i * width + j) * scale, y = ld(from + i * width + half + j) * scale;
            const F32 c = ld(rotation + i * dims + j), s = ld(rotation + i * dims + half + j);
            st(to + i * stride + j, x * c + y * s);
            st(to + i * stride + half + j, y * c - x * s);
          }
        }
      });
}

/// to[begin + i] = from(i) for i < count, and 0 before and after, up to a whole block. `rows` gets what `make(rows)`
/// writes from its start.
template <typename Make>
VEC_INLINE void place_rows(int begin, int count, float* to, const Make& make) {
  alignas(64) float rows[kBlock] = {};
  make(rows);
  for (int i = 0; i < kBlock; ++i) to[i] = i >= begin && i < begin + count ? rows[i - begin] : 0.0f;
}

/// to[i] = row i of x · row i of y; whole vectors of `to` are written, 0 beyond `count`.
template <typename T>
void row_products(const T* x, const T* y, std::int64_t stride, int count, int dims, float* to) {
  for (int first = 0; first < count; first += kLanes) {
    F32 sums[kLanes] = {};
    for (int i = 0; i < kLanes && first + i < count; ++i) {
      const std::int64_t row = (first + i) * stride;
      for_each_vector(
          0, dims, [&](std::int64_t d, auto ld, auto) __attribute__((always_inline)) {
            sums[i] = fma(ld(x + row + d), ld(y + row + d), sums[i]);
          });
    }
    store(to + first, reduce_rows(
                          sums, [](F32 a, F32 b) __attribute__((always_inline)) { return a + b; }));
  }
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
