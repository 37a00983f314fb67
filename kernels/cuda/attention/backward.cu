// attention_grad on tensor cores: FlashAttention-2 (Dao, 2023), algorithm 2, cut in two so that nothing is added by
// several blocks and every run gives the same bits: blocks of keys go over queries, and over the heads that share them
// in order, for dk and dv; blocks of queries go over keys for dq. Scores are made in both: seven products instead of
// five, and no sums of dq in memory. Of heads of more than 128 elements, dk and dv are made by blocks of their own,
// since both do not fit in registers.
#include "kernels/cuda/attention/tile.cuh"

namespace trainer::kernels::cuda {
namespace {

/// Of a block that goes over tiles of so many columns.
template <int D, int Columns>
struct Sizes {
  static constexpr int kRows = kAttentionWarps * 16;  ///< that a block makes gradients of: keys, or queries
  static constexpr int kColumns = Columns;
  static constexpr int kStages = D <= 128 ? 2 : 1;  ///< tiles on their way
  static constexpr int kTileBytes = (2 * kRows + 2 * kStages * kColumns) * kTileStride<D> * 2;
  static constexpr int kStatisticsBytes = 2 * kStages * kColumns * 4;
  static constexpr int kBytes = (kTileBytes > kStagingBytes<D> ? kTileBytes : kStagingBytes<D>)+kStatisticsBytes;
};
/// dk and dv lie in registers beside a tile's probabilities and their gradient. Few columns, so that of heads of up to
/// 64 three blocks fit a multiprocessor by their registers.
template <int D>
using KeySizes = Sizes<D, D <= 128 ? 32 : 16>;
template <int D>
using QuerySizes = Sizes<D, D <= 64    ? 64
                            : D <= 128 ? 32
                                       : 16>;

/// The numbers of rows [0, Columns) of a head's queries, of which `valid` are there: lse in units of log 2, and delta.
/// Where no query is, its probabilities are zero.
template <int Columns>
__device__ __forceinline__ void load_statistics(float* lse_log2, float* delta, const AttentionArguments& a,
                                                std::int64_t first, int valid) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= Columns) return;
  lse_log2[i] = i < valid ? a.lse[first + i] * kLog2E : INFINITY;
  delta[i] = i < valid ? a.delta[first + i] : 0.0F;
}

/// Makes p 0 where a query does not see a key. Rows are keys and columns queries, or the other way round; `row`,
/// `column`: positions of the first.
template <bool RowsAreKeys, int N>
__device__ __forceinline__ void mask(FragmentC (&p)[1][N], const AttentionArguments& a, int count, int batch, int row,
                                     int column) {
  const int lane = lane_of_thread();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int position = row + row_in_c(lane, 2 * half);
    const DocumentBounds seen =
        RowsAreKeys ? queries_that_see(a, batch, count, position) : keys_seen_by(a, batch, count, position);
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i)
        if (!within(seen, column + 8 * n + column_in_c(lane, i))) p[0][n].at[i] = 0.0F;
  }
}

/// dp − delta times the slope of the softcap, 1 − tanh². Columns are queries. No register holds the tanh so long: it is
/// found again from ln p = softcap · tanh − lse; where p is 0, so is the gradient.
template <int Columns>
__device__ __forceinline__ void slope_of_cap(FragmentC (&dp)[1][Columns / 8], const FragmentC (&p)[1][Columns / 8],
                                             const float* lse_log2, const float* delta, const AttentionArguments& a) {
  const int lane = lane_of_thread();
#pragma unroll
  for (int n = 0; n < Columns / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = 8 * n + column_in_c(lane, i);
      const float value = p[0][n].at[i],
                  tanh = value > 0 ? (log2f(value) + lse_log2[query]) / (a.softcap * kLog2E) : 0.0F;
      dp[0][n].at[i] = fmaf(dp[0][n].at[i] - delta[query], 1 - tanh * tanh, delta[query]);
    }
}

/// dk and dv, or one of them, of a block of keys.
template <typename T, int D, bool Dk, bool Dv>
__device__ __forceinline__ void gradients_of_keys(const AttentionArguments& a, const Rotation& rotation, int first_key,
                                                  int kv_head, int batch) {
  using S = KeySizes<D>;
  constexpr int kQueries = S::kColumns, kStages = S::kStages, kStride = kTileStride<D>;
  T* const k_tile = dynamic_shared<T>();
  T* const v_tile = k_tile + S::kRows * kStride;
  T* const q_tiles = v_tile + S::kRows * kStride;
  T* const do_tiles = q_tiles + kStages * kQueries * kStride;
  float* const lse_tiles = dynamic_shared<float>() + (S::kBytes - S::kStatisticsBytes) / 4;
  float* const delta_tiles = lse_tiles + kStages * kQueries;

  const std::int64_t token = static_cast<std::int64_t>(batch) * a.keys,
                     query_token = static_cast<std::int64_t>(batch) * a.queries;
  // Of a part of the sequence, queries begin after a key or before it; where none sees it, there are no tiles, and its
  // gradients are 0.
  const int count = keys_of(a, batch), group = a.heads / a.kv_heads,
            first_query = first_query_of(a, batch, first_key) / kQueries * kQueries;
  const int query_tiles = max(end_query_of(a, batch, first_key, S::kRows) - first_query + kQueries - 1, 0) / kQueries,
            tiles = group * query_tiles;
  const auto load_queries = [&](int tile, int stage) {
    const int head = kv_head * group + tile / query_tiles, query = first_query + tile % query_tiles * kQueries;
    load_tile<kQueries, D>(q_tiles + stage * kQueries * kStride,
                           head_at<const T>(a.q, query_token + query, head, a.head_dim), a.q.stride, a.queries - query,
                           a.head_dim, a.vectors);
    load_tile<kQueries, D>(do_tiles + stage * kQueries * kStride,
                           head_at<const T>(a.d_o, query_token + query, head, a.v_dim), a.d_o.stride, a.queries - query,
                           a.v_dim, a.vectors);
    load_statistics<kQueries>(lse_tiles + stage * kQueries, delta_tiles + stage * kQueries, a,
                              (static_cast<std::int64_t>(batch) * a.heads + head) * a.queries + query,
                              a.queries - query);
  };

  load_tile<S::kRows, D>(k_tile, head_at<const T>(a.k, token + first_key, kv_head, a.head_dim), a.k.stride,
                         count - first_key, a.head_dim, a.vectors);
  if (Dk)
    load_tile<S::kRows, D>(v_tile, head_at<const T>(a.v, token + first_key, kv_head, a.v_dim), a.v.stride,
                           count - first_key, a.v_dim, a.vectors);
  if (kStages == 2 && tiles > 0) load_queries(0, 0);
  commit_copies();

  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_of_thread(), warp_key = first_key + warp * 16;
  const float scale_log2 = a.scale * kLog2E;
  FragmentC dk[1][Dk ? D / 8 : 1], dv[1][Dv ? D / 8 : 1];
  clear(dk), clear(dv);
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % kStages, query = first_query + tile % query_tiles * kQueries;
    if (kStages == 2) {
      wait_for_copies<0>();
      __syncthreads();  // this tile is here, and nobody reads the one before
      if (tile + 1 < tiles) load_queries(tile + 1, 1 - stage);
      commit_copies();
    } else {
      __syncthreads();
      load_queries(tile, 0);
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
    }
    const T *const q_tile = q_tiles + stage * kQueries * kStride, *const do_tile =
                                                                      do_tiles + stage * kQueries * kStride;
    // Rows are keys, columns queries.
    FragmentC p[1][kQueries / 8];
    clear(p);
    multiply_rows<1, kQueries / 8, D>(p, k_tile + warp * 16 * kStride, q_tile);
    const int position = a.origin + query;
    if (a.softcap != 0)
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) p[0][n].at[i] = capped(a, capped_tanh(a, p[0][n].at[i]));
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
      const Vec<float, 2> lse = load<2>(lse_tiles + stage * kQueries + 8 * n + column_in_c(lane, 0), 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[0][n].at[i] = exp2_fast(fmaf(p[0][n].at[i], scale_log2, -lse[i % 2]));
      }
    }
    if (is_masked(a, batch, count, position, kQueries, warp_key, 16))
      mask<true>(p, a, count, batch, warp_key, position);
    if constexpr (Dv) multiply_columns<T, 1, kQueries / 8, D>(dv, p, do_tile);
    if constexpr (Dk) {
      FragmentC dp[1][kQueries / 8];
      clear(dp);
      multiply_rows<1, kQueries / 8, D>(dp, v_tile + warp * 16 * kStride, do_tile);
      if (a.softcap != 0)
        slope_of_cap<kQueries>(dp, p, lse_tiles + stage * kQueries, delta_tiles + stage * kQueries, a);
#pragma unroll
      for (int n = 0; n < kQueries / 8; ++n) {
        const Vec<float, 2> delta = load<2>(delta_tiles + stage * kQueries + 8 * n + column_in_c(lane, 0), 0);
#pragma unroll
        for (int i = 0; i < 4; ++i) p[0][n].at[i] *= dp[0][n].at[i] - delta[i % 2];
      }
      multiply_columns<T, 1, kQueries / 8, D>(dk, p, q_tile);
    }
  }

  wait_for_copies<0>();
  __syncthreads();  // the tiles become the way out
  float* const staging = dynamic_shared<float>() + warp * 16 * kStride;
  if constexpr (Dk)
    store_rows<D>(dk[0], a.scale, a.scale, staging, head_at<T>(a.dk, token + warp_key, kv_head, a.head_dim),
                  a.dk.stride, a.keys - warp_key, a.head_dim, a, &rotation, batch, warp_key);
  if constexpr (Dv)
    store_rows<D>(dv[0], 1.0F, 1.0F, staging, head_at<T>(a.dv, token + warp_key, kv_head, a.v_dim), a.dv.stride,
                  a.keys - warp_key, a.v_dim, a, nullptr, batch, warp_key);
}

// Blocks of the first keys, which most queries see, come first.
template <typename T, int D>
__global__ void __launch_bounds__(kAttentionThreads) keys(const AttentionArguments a, const Rotation rotation) {
  constexpr int kParts = D > 128 ? 2 : 1;
  using S = KeySizes<D>;
  const int key_blocks = (a.keys + S::kRows - 1) / S::kRows, part = static_cast<int>(blockIdx.x) % kParts,
            index = static_cast<int>(blockIdx.x) / kParts;
  const int first_key = index % key_blocks * S::kRows, batch_head = index / key_blocks,
            kv_head = batch_head % a.kv_heads, batch = batch_head / a.kv_heads;
  if constexpr (kParts == 1)
    gradients_of_keys<T, D, true, true>(a, rotation, first_key, kv_head, batch);
  else if (part == 0)
    gradients_of_keys<T, D, true, false>(a, rotation, first_key, kv_head, batch);
  else
    gradients_of_keys<T, D, false, true>(a, rotation, first_key, kv_head, batch);
}

// dq of a block of queries; blocks of the last, which see most keys, come first.
template <typename T, int D>
__global__ void __launch_bounds__(kAttentionThreads) queries(const AttentionArguments a, const Rotation rotation) {
  using S = QuerySizes<D>;
  constexpr int kKeys = S::kColumns, kStages = S::kStages, kStride = kTileStride<D>;
  T* const q_tile = dynamic_shared<T>();
  T* const do_tile = q_tile + S::kRows * kStride;
  T* const k_tiles = do_tile + S::kRows * kStride;
  T* const v_tiles = k_tiles + kStages * kKeys * kStride;

  const int query_blocks = (a.queries + S::kRows - 1) / S::kRows,
            batch_head = static_cast<int>(blockIdx.x) / query_blocks;
  const int first_query = (query_blocks - 1 - static_cast<int>(blockIdx.x) % query_blocks) * S::kRows;
  const int head = batch_head % a.heads, batch = batch_head / a.heads, kv_head = head / (a.heads / a.kv_heads);
  const std::int64_t token = static_cast<std::int64_t>(batch) * a.queries,
                     statistics = static_cast<std::int64_t>(batch_head) * a.queries;
  const std::int64_t key_token = static_cast<std::int64_t>(batch) * a.keys;
  const int count = keys_of(a, batch), begin = first_key_of(a, batch, a.origin + first_query) / kKeys * kKeys,
            end = end_key_of(a, batch, count, a.origin + first_query, S::kRows);
  const auto load_keys = [&](int key, int stage) {
    load_tile<kKeys, D>(k_tiles + stage * kKeys * kStride, head_at<const T>(a.k, key_token + key, kv_head, a.head_dim),
                        a.k.stride, count - key, a.head_dim, a.vectors);
    load_tile<kKeys, D>(v_tiles + stage * kKeys * kStride, head_at<const T>(a.v, key_token + key, kv_head, a.v_dim),
                        a.v.stride, count - key, a.v_dim, a.vectors);
  };

  load_tile<S::kRows, D>(q_tile, head_at<const T>(a.q, token + first_query, head, a.head_dim), a.q.stride,
                         a.queries - first_query, a.head_dim, a.vectors);
  load_tile<S::kRows, D>(do_tile, head_at<const T>(a.d_o, token + first_query, head, a.v_dim), a.d_o.stride,
                         a.queries - first_query, a.v_dim, a.vectors);
  if (kStages == 2) load_keys(begin, 0);
  commit_copies();

  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_of_thread(), warp_query = first_query + warp * 16,
            warp_position = a.origin + warp_query;
  const float scale_log2 = a.scale * kLog2E;
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_query + row_in_c(lane, 2 * half);
    lse[half] = row < a.queries ? a.lse[statistics + row] * kLog2E : INFINITY;
    delta[half] = row < a.queries ? a.delta[statistics + row] : 0.0F;
  }
  FragmentC dq[1][D / 8];
  clear(dq);
  for (int key = begin, tile = 0; key < end; key += kKeys, ++tile) {
    const int stage = tile % kStages;
    if (kStages == 2) {
      wait_for_copies<0>();
      __syncthreads();  // this tile is here, and nobody reads the one before
      if (key + kKeys < end) load_keys(key + kKeys, 1 - stage);
      commit_copies();
    } else {
      __syncthreads();
      load_keys(key, 0);
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
    }
    const T *const k_tile = k_tiles + stage * kKeys * kStride, *const v_tile = v_tiles + stage * kKeys * kStride;
    FragmentC p[1][kKeys / 8], dp[1][kKeys / 8];
    clear(p), clear(dp);
    multiply_rows<1, kKeys / 8, D>(p, q_tile + warp * 16 * kStride, k_tile);
    multiply_rows<1, kKeys / 8, D>(dp, do_tile + warp * 16 * kStride, v_tile);
    if (a.softcap != 0)
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float tanh = capped_tanh(a, p[0][n].at[i]);
          p[0][n].at[i] = capped(a, tanh);
          dp[0][n].at[i] = fmaf(dp[0][n].at[i] - delta[i / 2], 1 - tanh * tanh, delta[i / 2]);
        }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[0][n].at[i] = exp2_fast(fmaf(p[0][n].at[i], scale_log2, -lse[i / 2])) * (dp[0][n].at[i] - delta[i / 2]);
    if (is_masked(a, batch, count, warp_position, 16, key, kKeys)) mask<false>(p, a, count, batch, warp_position, key);
    multiply_columns<T, 1, kKeys / 8, D>(dq, p, k_tile);
  }

  wait_for_copies<0>();
  __syncthreads();  // the tiles become the way out
  float* const staging = dynamic_shared<float>() + warp * 16 * kStride;
  store_rows<D>(dq[0], a.scale, a.scale, staging, head_at<T>(a.dq, token + warp_query, head, a.head_dim), a.dq.stride,
                a.queries - warp_query, a.head_dim, a, &rotation, batch, warp_position);
}

template <typename Fn>
void with_kernels(DType dtype, int head_dim, Fn&& fn) {
  with_narrow_type(dtype, [&]<typename T>(T) {
    with_head_dim(head_dim, [&]<int D>(std::integral_constant<int, D>) {
      fn(keys<T, D>, KeySizes<D>{}, queries<T, D>, QuerySizes<D>{}, D > 128 ? 2 : 1);
    });
  });
}

}  // namespace

void allow_attention_backward(DType dtype, int head_dim) {
  with_kernels(dtype, head_dim, []<typename K, typename Q>(auto of_keys, K, auto of_queries, Q, int) {
    allow_shared(of_keys, K::kBytes), allow_shared(of_queries, Q::kBytes);
  });
}

void attention_backward(const Call& call, DType dtype, const AttentionArguments& a, const Rotation& rotation) {
  with_kernels(dtype, a.widest(), [&]<typename K, typename Q>(auto of_keys, K, auto of_queries, Q, int parts) {
    const unsigned of_key_blocks = blocks_for(a.keys, K::kRows) * static_cast<unsigned>(a.batch * a.kv_heads * parts);
    const unsigned of_query_blocks = blocks_for(a.queries, Q::kRows) * static_cast<unsigned>(a.batch * a.heads);
    launch(call, {.blocks = of_key_blocks, .threads = kAttentionThreads, .shared_bytes = K::kBytes}, of_keys, a,
           rotation);
    launch(call, {.blocks = of_query_blocks, .threads = kAttentionThreads, .shared_bytes = Q::kBytes}, of_queries, a,
           rotation);
  });
}

}  // namespace trainer::kernels::cuda
