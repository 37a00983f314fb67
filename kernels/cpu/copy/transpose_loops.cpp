// Loops file (vec.h). Squares are transposed in registers: of 32-bit elements as they are; of 16-bit ones as pairs, in
// two squares of pairs one below the other, whose even and odd halves are then put side by side. Where the rows of `to`
// are not whole cache lines, one square follows the other along them, so that the next one completes a line that was
// written in part; elsewhere they follow each other along the rows of `from`.
#include "kernels/cpu/copy/transpose_loops.h"

#include "kernels/cpu/runtime/transpose.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr int kPairs = 2 * kLanes;  // 16-bit elements of a register
constexpr std::int64_t kLineBytes = 64;
using U16 = std::uint16_t __attribute__((vector_size(2 * kPairs)));

/// square(row, column) for each square of kSide that begins in the matrix.
template <int kSide, typename Square>
VEC_INLINE void each_square(const Transposition& t, std::int64_t element_bytes, Square square) {
  if (t.to_row * element_bytes % kLineBytes != 0) {
    for (std::int64_t column = 0; column < t.columns; column += kSide)
      for (std::int64_t row = 0; row < t.rows; row += kSide) square(row, column);
  } else {
    for (std::int64_t row = 0; row < t.rows; row += kSide)
      for (std::int64_t column = 0; column < t.columns; column += kSide) square(row, column);
  }
}

#if !defined(__AVX512F__)
/// What is left at the borders, where loads and stores have no masks.
template <bool kAdd, typename T>
VEC_INLINE void transpose_singly(const Transposition& t, const T* from, T* to) {
  for (std::int64_t c = 0; c < t.columns; ++c)
    for (std::int64_t r = 0; r < t.rows; ++r) {
      const T value = from[r * t.from_row + c];
      T& there = to[c * t.to_row + r];
      there = kAdd ? static_cast<T>(there + value) : value;
    }
}
#endif

/// t.rows and t.columns: at most kLanes.
template <bool kAdd>
VEC_INLINE void transpose_square(const Transposition& t, const float* from, float* to) {
  U32 m[kLanes];
  if (t.rows == kLanes && t.columns == kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) m[i] = (U32)load(from + i * t.from_row);
    transpose(m);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      float* const at = to + i * t.to_row;
      store(at, kAdd ? load(at) + (F32)m[i] : (F32)m[i]);
    }
    return;
  }
#if defined(__AVX512F__)
  const auto rows = static_cast<int>(t.rows), columns = static_cast<int>(t.columns);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) m[i] = i < rows ? (U32)load_first(from + i * t.from_row, columns) : U32{};
  transpose(m);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i >= columns) break;
    float* const at = to + i * t.to_row;
    store_first(at, kAdd ? load_first(at, rows) + (F32)m[i] : (F32)m[i], rows);
  }
#else
  transpose_singly<kAdd>(t, from, to);
#endif
}

VEC_INLINE U32 load_pairs(const std::uint16_t* p) {
  U32 x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

/// The 16-bit elements of a, then those of b, of which the first of each pair (kOdd: the second).
template <bool kOdd>
VEC_INLINE U16 halves_of(U32 a, U32 b) {
  U16 order{};
  for (int i = 0; i < kPairs; ++i) order[i] = static_cast<std::uint16_t>(2 * i + (kOdd ? 1 : 0));
  return __builtin_shuffle((U16)a, (U16)b, order);
}

/// t.rows and t.columns: at most kPairs.
VEC_INLINE void transpose_square(const Transposition& t, const std::uint16_t* from, std::uint16_t* to) {
  U32 upper[kLanes], lower[kLanes];
  if (t.rows == kPairs && t.columns == kPairs) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) upper[i] = load_pairs(from + i * t.from_row);
    transpose(upper);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) lower[i] = load_pairs(from + (kLanes + i) * t.from_row);
    transpose(lower);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      const U16 even = halves_of<false>(upper[i], lower[i]), odd = halves_of<true>(upper[i], lower[i]);
      __builtin_memcpy(to + 2 * i * t.to_row, &even, sizeof even);
      __builtin_memcpy(to + (2 * i + 1) * t.to_row, &odd, sizeof odd);
    }
    return;
  }
#if defined(__AVX512F__)
  const auto first_halves = [](std::int64_t n) __attribute__((always_inline)) {
    return static_cast<__mmask32>((std::uint64_t{1} << n) - 1);
  };
  const __mmask32 columns = first_halves(t.columns), rows = first_halves(t.rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    upper[i] = i < t.rows ? (U32)_mm512_maskz_loadu_epi16(columns, from + i * t.from_row) : U32{};
  transpose(upper);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    lower[i] = kLanes + i < t.rows ? (U32)_mm512_maskz_loadu_epi16(columns, from + (kLanes + i) * t.from_row) : U32{};
  transpose(lower);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (2 * i < t.columns)
      _mm512_mask_storeu_epi16(to + 2 * i * t.to_row, rows, (__m512i)halves_of<false>(upper[i], lower[i]));
    if (2 * i + 1 < t.columns)
      _mm512_mask_storeu_epi16(to + (2 * i + 1) * t.to_row, rows, (__m512i)halves_of<true>(upper[i], lower[i]));
  }
#else
  transpose_singly<false>(t, from, to);
#endif
}

VEC_INLINE std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// The square that begins at (row, column), or what there is of it.
template <int kSide>
VEC_INLINE Transposition part_of(const Transposition& t, std::int64_t row, std::int64_t column) {
  return {least(t.rows - row, kSide), least(t.columns - column, kSide), t.from_row, t.to_row};
}

}  // namespace

void transpose_u16(const Transposition& t, const std::uint16_t* from, std::uint16_t* to) {
  each_square<kPairs>(
      t, 2, [&](std::int64_t row, std::int64_t column) __attribute__((always_inline)) {
        transpose_square(part_of<kPairs>(t, row, column), from + row * t.from_row + column,
                         to + column * t.to_row + row);
      });
}

void transpose_f32(const Transposition& t, const float* from, float* to) {
  each_square<kLanes>(
      t, 4, [&](std::int64_t row, std::int64_t column) __attribute__((always_inline)) {
        transpose_square<false>(part_of<kLanes>(t, row, column), from + row * t.from_row + column,
                                to + column * t.to_row + row);
      });
}

void add_transposed_f32(const Transposition& t, const float* from, float* to) {
  each_square<kLanes>(
      t, 4, [&](std::int64_t row, std::int64_t column) __attribute__((always_inline)) {
        transpose_square<true>(part_of<kLanes>(t, row, column), from + row * t.from_row + column,
                               to + column * t.to_row + row);
      });
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
