// What the attention kernels on tensor cores share: tiles of heads in shared memory, products of a warp's 16 rows, and
// rows of accumulators back to memory. Rows of tiles are padded by 16 bytes, so that the eight rows of an ldmatrix lie
// in different banks.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/head.cuh"
#include "kernels/cuda/runtime/mma.cuh"

namespace trainer::kernels::cuda {

inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionWarps = kAttentionThreads / kWarp;
inline constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;

/// Elements between rows of a tile whose heads have up to D elements; floats between rows of accumulators on their way
/// out.
template <int D>
inline constexpr int kTileStride = D + 8;

/// Starts to bring rows [0, Rows) of a head's tokens from `from` on, `valid` of them and zeros after; columns from
/// head_dim on are zeros. The caller commits, waits and meets a barrier before it reads.
template <int Rows, int D, typename T>
__device__ __forceinline__ void load_tile(T* tile, const T* from, std::int64_t stride, int valid, int head_dim,
                                          bool vectors) {
  constexpr int kN = kVector<T>, kChunks = D / kN;
  if (vectors) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < Rows * kChunks; i += kAttentionThreads) {
      const int row = i / kChunks, column = i % kChunks * kN;
      const bool inside = row < valid && column < head_dim;
      copy_async(tile + row * kTileStride<D> + column, inside ? from + row * stride + column : from, inside);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < Rows * D; i += kAttentionThreads) {
      const int row = i / D, column = i % D;
      tile[row * kTileStride<D> + column] =
          row < valid && column < head_dim ? from[row * stride + column] : from_f32<T>(0);
    }
  }
}

/// c[m][n] += rows 16 m … of a · (rows 8 n … of b)ᵀ, over D columns of both.
template <int M, int N, int D, typename T>
__device__ __forceinline__ void multiply_rows(FragmentC (&c)[M][N], const T* a, const T* b) {
#pragma unroll(D > 128 ? 2 : D / 16)
  for (int k = 0; k < D; k += 16) {
    FragmentA left[M];
#pragma unroll
    for (int m = 0; m < M; ++m) left[m] = load_a<kTileStride<D>>(a + 16 * m * kTileStride<D> + k);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      FragmentB right[2];
      load_b_rows<kTileStride<D>>(right, b + 8 * n * kTileStride<D> + k);
#pragma unroll
      for (int m = 0; m < M; ++m) mma<T>(c[m][n], left[m], right[0]), mma<T>(c[m][n + 1], left[m], right[1]);
    }
  }
}

/// c[m][n] += p · columns 8 n … of b, over the 8 K columns of p and rows of b. p is rounded to T.
template <typename T, int M, int K, int D>
__device__ __forceinline__ void multiply_columns(FragmentC (&c)[M][D / 8], const FragmentC (&p)[M][K], const T* b) {
#pragma unroll
  for (int k = 0; k < K; k += 2) {
    FragmentA left[M];
#pragma unroll
    for (int m = 0; m < M; ++m) left[m] = as_a<T>(p[m][k], p[m][k + 1]);
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      FragmentB right[2];
      load_b_columns<kTileStride<D>>(right, b + 8 * k * kTileStride<D> + 8 * n);
#pragma unroll
      for (int m = 0; m < M; ++m) mma<T>(c[m][n], left[m], right[0]), mma<T>(c[m][n + 1], left[m], right[1]);
    }
  }
}

template <int M, int N>
__device__ __forceinline__ void clear(FragmentC (&c)[M][N]) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n) c[m][n] = {};
}

/// Bytes through which store_rows goes, of all warps.
template <int D>
inline constexpr int kStagingBytes = kAttentionWarps * 16 * kTileStride<D> * 4;

/// 16 rows of a warp, times `factors` of its rows g and g + 8, to a head's tokens from `to` on, of which `valid` are
/// stored; turned back where there is a rotation. `staging`: this warp's 16 rows. `position`: of the first row, in
/// sample `batch`.
template <int D, typename T>
__device__ __forceinline__ void store_rows(const FragmentC (&c)[D / 8], float low, float high, float* staging, T* to,
                                           std::int64_t stride, int valid, int head_dim, const AttentionArguments& a,
                                           const Rotation* rotation, int batch, int position) {
  constexpr int kStride = kTileStride<D>, kN = kVector<T>;
  const int lane = lane_of_thread();
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    float* at = staging + row_in_c(lane, 0) * kStride + 8 * n + column_in_c(lane, 0);
    store(at, 0, Vec<float, 2>{{c[n].at[0] * low, c[n].at[1] * low}});
    store(at + 8 * kStride, 0, Vec<float, 2>{{c[n].at[2] * high, c[n].at[3] * high}});
  }
  __syncwarp();
  if (rotation != nullptr && rotation->half > 0) {
    turn_rows<16>(staging, kStride, a, batch, *rotation, position, -1.0F, lane, kWarp);
    __syncwarp();
  }
  for (int i = lane; i < 16 * (D / kN); i += kWarp) {
    const int row = i / (D / kN), column = i % (D / kN) * kN;
    if (row >= valid || column >= head_dim) continue;
    const float* from = staging + row * kStride + column;
    if (a.vectors) {
      Vec<T, kN> out;
#pragma unroll
      for (int e = 0; e < kN; ++e) out[e] = from_f32<T>(from[e]);
      store(to + row * stride + column, 0, out);
    } else {
      for (int e = 0; e < kN && column + e < head_dim; ++e) to[row * stride + column + e] = from_f32<T>(from[e]);
    }
  }
  __syncwarp();  // before the next 16 rows come here
}

/// Calls fn with the smallest size of tile that takes heads of `head_dim` elements.
template <typename Fn>
void with_head_dim(int head_dim, Fn&& fn) {
  if (head_dim <= 32)
    fn(std::integral_constant<int, 32>{});
  else if (head_dim <= 64)
    fn(std::integral_constant<int, 64>{});
  else if (head_dim <= 128)
    fn(std::integral_constant<int, 128>{});
  else
    fn(std::integral_constant<int, kLargestHeadDim>{});
}

/// Calls fn with bf16 or f16.
template <typename Fn>
void with_narrow_type(DType dtype, Fn&& fn) {
  if (dtype == DType::f16)
    fn(f16{});
  else
    fn(bf16{});
}

}  // namespace trainer::kernels::cuda
