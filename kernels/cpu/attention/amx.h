// What both directions of attention on AMX tiles share: products of blocks of bf16 with sums in f32, and the forms in
// which tiles read their operands. For loops files only, on a processor's tiles or emulated ones (gemm/tiles.h).
//
// A tile of A is 16 rows of 32 bf16 as they lie in a row-major matrix. A tile of B is 16 rows of 16 words, a word being
// the bf16 pair of two steps of the sum: a matrix in "words" has half the rows. A block is 64 queries or 64 keys, and
// head_dim is padded to a multiple of 32, so that every product is a whole number of 32 × 32 squares of C, 2 × 2 tiles.
#pragma once

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/rows.h"
#include "kernels/cpu/attention/tiles.h"
#include "kernels/cpu/gemm/tiles.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr float kLog2E = 1.44269504f;

/// Hands out scratch memory from its beginning.
struct Carver {
  char* at;
  template <typename T>
  [[gnu::always_inline]] T* take(std::int64_t count) {
    T* taken = reinterpret_cast<T*>(at);
    at += count * static_cast<std::int64_t>(sizeof(T));
    return taken;
  }
};

// ---- products

/// Sums of 32 × 32 in four tiles. They reach memory while the next square begins, so that the products seldom wait.
class Square {
 public:
  /// c (+)= a · b over `steps` of 32. Strides in bytes; a's next step is 64 bytes on, b's 16 rows.
  [[gnu::noinline]] void multiply(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, int steps,
                                  float* c, std::int64_t c_stride, bool add) {
    start<0>(c, c_stride, add);
    start<1>(c + 16, c_stride, add);
    start<2>(c + 4 * c_stride, c_stride, add);
    start<3>(c + 4 * c_stride + 16, c_stride, add);
    const char *row = static_cast<const char*>(a), *words = static_cast<const char*>(b);
    for (int step = 0; step < steps; ++step, row += 64, words += 16 * b_stride) {
      Tiles::load<4>(row, a_stride);
      Tiles::load<6>(words, b_stride);
      Tiles::multiply_add<0, 4, 6>();
      Tiles::load<7>(words + 64, b_stride);
      Tiles::multiply_add<1, 4, 7>();
      Tiles::load<5>(row + 16 * a_stride, a_stride);
      Tiles::multiply_add<2, 5, 6>();
      Tiles::multiply_add<3, 5, 7>();
    }
    pending_ = c;
    stride_ = c_stride;
  }

  void flush() {
    if (pending_ == nullptr) return;
    finish<0>(pending_);
    finish<1>(pending_ + 16);
    finish<2>(pending_ + 4 * stride_);
    finish<3>(pending_ + 4 * stride_ + 16);
    pending_ = nullptr;
  }

 private:
  template <int kTile>
  void start(const float* c, std::int64_t c_stride, bool add) {
    if (pending_ != nullptr) finish<kTile>(pending_ + kTile / 2 * 4 * stride_ + kTile % 2 * 16);
    add ? Tiles::load<kTile>(c, c_stride) : Tiles::zero<kTile>();
  }
  template <int kTile>
  void finish(float* c) const {
    Tiles::store<kTile>(c, stride_);
  }

  float* pending_ = nullptr;
  std::int64_t stride_ = 0;
};

/// A row-major matrix of T, `width` elements to a row.
template <typename T>
struct Matrix {
  T* data;
  int width;

  [[gnu::always_inline]] T* at(int row, int column) const { return data + row * width + column; }
  [[gnu::always_inline]] std::int64_t stride() const { return width * static_cast<std::int64_t>(sizeof(T)); }
};

/// c (+)= a · b, [rows][columns], both multiples of 32. steps_of(row, column) is the range of the sum that counts for
/// the square there, in steps; squares whose range is empty are left alone.
template <typename StepsOf>
void multiply(Matrix<Bf16> a, Matrix<std::uint32_t> b, Matrix<float> c, int rows, int columns, bool add,
              const StepsOf& steps_of) {
  Square square;
  for (int row = 0; row < rows; row += 32)
    for (int column = 0; column < columns; column += 32) {
      const Depth steps = steps_of(row, column);
      if (steps.begin < steps.end)
        square.multiply(a.at(row, steps.begin * 32), a.stride(), b.at(steps.begin * 16, column), b.stride(),
                        steps.end - steps.begin, c.at(row, column), c.stride(), add);
    }
  square.flush();
}

// ---- forms

/// Rows of bf16 in scratch, from row `begin` on: rows of an operand, turned by RoPE, with zeros up to `width`; all
/// other rows of the block are zeros.
inline void copy_rows(const Bf16* from, std::int64_t stride, int count, int dims, Turn turn, Matrix<Bf16> to,
                      int begin = 0) {
  for (int i = 0; i < kBlock; ++i)
    if (i < begin || i >= begin + count || dims < to.width)
      __builtin_memset(to.at(i, 0), 0, static_cast<std::size_t>(to.stride()));
  if (turn.table == nullptr)
    for (int i = 0; i < count; ++i) {
      const Bf16* row = from + i * stride;
      int d = 0;
      for (; d + 32 <= dims; d += 32) __builtin_memcpy(to.at(begin + i, d), row + d, 64);  // a vector
      if (d < dims) __builtin_memcpy(to.at(begin + i, d), row + d, static_cast<std::size_t>(dims - d) * sizeof(Bf16));
    }
  else
    turn_rows(from, stride, count, dims, turn, to.at(begin, 0), to.width);
}

/// to[column][row] = from[row][column] for 32-bit words; rows and columns multiples of 16.
inline void transpose_words(const void* from, int from_width, int rows, int columns, void* to, int to_width) {
  const float* source = static_cast<const float*>(from);
  float* target = static_cast<float*>(to);
  for (int row = 0; row < rows; row += kLanes)
    for (int column = 0; column < columns; column += kLanes) {
      F32 lanes[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) lanes[i] = load(source + (row + i) * from_width + column);
      transpose_lanes(lanes);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(target + (column + i) * to_width + row, lanes[i]);
    }
}

/// The words of rows 2i and 2i + 1, for a sum over rows: to[rows / 2][width].
inline void pair_rows(Matrix<Bf16> from, int rows, std::uint32_t* to) {
  for (int i = 0; i < rows; i += 2)
    for (int d = 0; d < from.width; d += kLanes) {
      const I32 low = bits_of(load(from.at(i, d))), high = bits_of(load(from.at(i + 1, d)));
      store(reinterpret_cast<float*>(to) + i / 2 * from.width + d, from_bits((I32)((U32)low >> 16) | high));
    }
}

/// The words of two rows of f32, rounded.
#if defined(__AVX512BF16__)
VEC_INLINE F32 pair_words(F32 low, F32 high) {
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return (F32)_mm512_permutexvar_epi16(order, halves);
}
#else
VEC_INLINE U32 rounded_to_bf16(F32 x) {
  const U32 bits = (U32)x;
  return bits + 0x7FFFu + ((bits >> 16) & 1u);
}
VEC_INLINE F32 pair_words(F32 low, F32 high) {
  return (F32)((rounded_to_bf16(low) >> 16) | (rounded_to_bf16(high) & 0xFFFF0000u));
}
#endif

// ---- exponential

/// As exp2_or_zero, within 3e-6 of the result: two hundredths of what rounding to bf16 may add.
VEC_INLINE F32 exp2_for_bf16(F32 t) {
  const F32 magic = splat(0x1.8p23f);
  t = max(splat(-127.0f), t);
  const F32 shifted = t + magic;
  const F32 f = t - (shifted - magic);
  F32 p = splat(9.5828531e-3f);
  p = fma(p, f, splat(5.59064246e-2f));
  p = fma(p, f, splat(2.40240986e-1f));
  p = fma(p, f, splat(6.93124193e-1f));
  p = fma(p, f, splat(1.0f));
  return add_to_exponent(p, shifted);
}

/// Keys [first, last] of a block that a query sees.
struct Span {
  int first, last;
};
VEC_INLINE Span seen_by(AttentionBlock block, int query) {
  return {query + block.beyond + 1, block.diagonal && query < block.keys ? query : block.keys - 1};
}
/// Whether key `key` + lane is one of them.
VEC_INLINE I32 visible(int key, Span seen) {
  return (lane_indices() + key <= seen.last) & (lane_indices() + key >= seen.first);
}

// ---- softcap

/// Scores, which `scale` multiplies later, as a softcap c leaves them: c · tanh(scale · s / c) / scale.
inline void cap_scores(Matrix<float> scores, float scale, float softcap) {
  for (int row = 0; row < kBlock; ++row)
    for (int key = 0; key < kBlock; key += kLanes)
      store(scores.at(row, key), tanh(load(scores.at(row, key)) * splat(scale / softcap)) * splat(softcap / scale));
}

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
