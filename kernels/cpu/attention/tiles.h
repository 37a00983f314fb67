// The inner parts of attention's loops: products of blocks held in registers, transposition, the exponential. For loops
// files only (see vec.h).
#pragma once

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/runtime/transpose.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {

constexpr int kBlock = static_cast<int>(kAttentionBlock);
constexpr int kBlockVecs = kBlock / kLanes;

constexpr int vecs_of(std::int64_t n) { return static_cast<int>((n + kLanes - 1) / kLanes); }
constexpr int round_up_16(int n) { return (n + 15) / 16 * 16; }

// ---- products

/// The sums of a tile, R rows of V vectors.
template <int R, int V>
struct Tile {
  static constexpr int rows = R, vecs = V;
  F32 sum[R][V];
};

/// Widest tile, in vectors, and the rows of a tile of V vectors: enough independent sums to hide the latency of an FMA
/// (4 cycles, 2 each cycle), few enough for the registers. Rows divide 16.
constexpr int kTileVecs = kLanes == 16 ? 4 : 2;
constexpr int tile_rows(int vecs) {
  if (kLanes == 16) return vecs == 4 ? 4 : vecs == 1 ? 16 : 8;
  return vecs == 2 ? 4 : 8;
}

/// An operand that is read one element at a time: element (row, k) of a lies at a[row * row_step + k * k_step].
struct Strided {
  const float* a;
  std::int64_t row_step, k_step;
};

struct Depth {
  int begin, end;
};

template <int R, int V, typename Finish>
VEC_INLINE void product_tile(Strided a, const float* b, std::int64_t b_step, int row, int vec, Depth depth,
                             const Finish& finish) {
  Tile<R, V> tile{};
  const float* at = a.a + row * a.row_step + depth.begin * a.k_step;
  b += depth.begin * b_step + vec * kLanes;
  for (int k = depth.begin; k < depth.end; ++k, at += a.k_step, b += b_step) {
    F32 wide[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) wide[v] = load(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F32 one = splat(at[r * a.row_step]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) tile.sum[r][v] = fma(one, wide[v], tile.sum[r][v]);
    }
  }
  finish(row, vec, tile);
}

template <int V, typename DepthOf, typename Finish>
VEC_INLINE void product_column(Strided a, const float* b, std::int64_t b_step, int row_begin, int row_end, int vec,
                               const DepthOf& depth_of, const Finish& finish) {
  constexpr int kRows = tile_rows(V);
  for (int row = row_begin; row < row_end; row += kRows)
    product_tile<kRows, V>(a, b, b_step, row, vec, depth_of(row, row + kRows), finish);
}

/// The product of a and b over rows [row_begin, row_end), a multiple of 16 of them, and the vectors [vec_begin,
/// vec_end) of b's rows, tile by tile: finish(row, vec, tile) gets each tile's sums. depth_of(first, last) is the range
/// of k that counts for rows [first, last).
template <typename DepthOf, typename Finish>
VEC_INLINE void product(Strided a, const float* b, std::int64_t b_step, int row_begin, int row_end, int vec_begin,
                        int vec_end, const DepthOf& depth_of, const Finish& finish) {
  int vec = vec_begin;
  for (; vec + kTileVecs <= vec_end; vec += kTileVecs)
    product_column<kTileVecs>(a, b, b_step, row_begin, row_end, vec, depth_of, finish);
  const int left = vec_end - vec;
  if constexpr (kTileVecs == 4) {
    if (left == 3) product_column<3>(a, b, b_step, row_begin, row_end, vec, depth_of, finish);
    if (left == 2) product_column<2>(a, b, b_step, row_begin, row_end, vec, depth_of, finish);
  }
  if (left == 1) product_column<1>(a, b, b_step, row_begin, row_end, vec, depth_of, finish);
}

/// to += tile, or to = tile.
template <int R, int V>
VEC_INLINE void add_tile(const Tile<R, V>& tile, float* to, std::int64_t step) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(to + r * step + v * kLanes, load(to + r * step + v * kLanes) + tile.sum[r][v]);
}

/// to = tile.
template <int R, int V>
VEC_INLINE void store_tile(const Tile<R, V>& tile, float* to, std::int64_t step) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(to + r * step + v * kLanes, tile.sum[r][v]);
}

// ---- transposition

/// Lane l of the result's mask picks, of the pair (a, b), what stage `half` of a transposition leaves in a (or in b).
template <int half, bool second>
VEC_INLINE I32 swap_mask() {
  I32 mask{};
  for (int l = 0; l < kLanes; ++l) {
    if (second) mask[l] = l & half ? kLanes + l : l + half;
    if (!second) mask[l] = l & half ? kLanes + l - half : l;
  }
  return mask;
}

VEC_INLINE void transpose_lanes(F32 (&rows)[kLanes]) {
  U32 words[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) words[i] = (U32)rows[i];
  transpose(words);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = (F32)words[i];
}

/// Lane l of the result: op over the lanes of rows[l]. Each stage of a transposition is followed by op, on half the
/// rows.
template <int half = kLanes / 2, typename Reduce>
VEC_INLINE F32 reduce_rows(F32 (&rows)[kLanes], Reduce op) {
#pragma GCC unroll 8
  for (int i = 0; i < half; ++i) {
    const F32 a = rows[i], b = rows[i + half];
    rows[i] = op(__builtin_shuffle(a, b, swap_mask<half, false>()), __builtin_shuffle(a, b, swap_mask<half, true>()));
  }
  if constexpr (half > 1) return reduce_rows<half / 2>(rows, op);
  return rows[0];
}

/// to[d][row] = scale * from[row][d] for whole square tiles of kLanes that cover rows × dims; rows of `to` are kBlock
/// apart.
inline void transpose(const float* from, std::int64_t from_step, int rows, int dims, float scale, float* to) {
  for (int row = 0; row < rows; row += kLanes) {
    for (int d = 0; d < dims; d += kLanes) {
      F32 lanes[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) lanes[i] = load(from + (row + i) * from_step + d) * scale;
      transpose_lanes(lanes);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(to + (d + i) * kBlock + row, lanes[i]);
    }
  }
}

// ---- exponential

/// 2^t for t ≤ 0 within 2 ulp, and 0 for t ≤ -127: there the exponent's bits of the sum below come out as 0. Between
/// -127 and -126 the result is a denormal number, which threads flush to 0. NaN stays NaN.
VEC_INLINE F32 exp2_or_zero(F32 t) {
  const F32 magic = splat(0x1.8p23f);  // adding it rounds to an integer, left in the low bits
  t = max(splat(-127.0f), t);
  const F32 shifted = t + magic;
  const F32 f = t - (shifted - magic);
  F32 p = splat(1.53533619e-4f);
  p = fma(p, f, splat(1.33988744e-3f));
  p = fma(p, f, splat(9.61843736e-3f));
  p = fma(p, f, splat(5.55033247e-2f));
  p = fma(p, f, splat(2.40226479e-1f));
  p = fma(p, f, splat(6.93147203e-1f));
  p = fma(p, f, splat(1.0f));
  return add_to_exponent(p, shifted);
}

/// 0, 1, 2 … in the lanes.
VEC_INLINE I32 lane_indices() {
  I32 index{};
  for (int l = 0; l < kLanes; ++l) index[l] = l;
  return index;
}

// ---- masks

/// Which keys of a block the queries in the lanes see, the first of them being `query`.
struct Visible {
  [[gnu::always_inline]] inline Visible(AttentionBlock block, int query)
      : last_key(I32{} + (block.keys - 1)),
        last_seen(block.diagonal ? lane_indices() + query : last_key),
        beyond(lane_indices() + (query + block.beyond)) {}
  [[gnu::always_inline]] inline I32 key(int key) const {
    return (last_seen >= key) & (last_key >= key) & (beyond < key);
  }
  I32 last_key, last_seen, beyond;
};

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
