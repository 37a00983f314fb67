// attention on tensor cores: FlashAttention-2 (Dao, 2023), algorithm 1. A block has 64 or 128 queries of a head, a warp
// whole rows of them, and goes over the keys in tiles: scores, their softmax as it is known so far, and its product
// with the values stay in registers. The next keys come while values are multiplied, values while scores are made.
// Blocks of the last queries, which see most keys, come first.
#include "kernels/cuda/attention/tile.cuh"

namespace trainer::kernels::cuda {
namespace {

/// Sizes for heads of up to D elements. Two rows of fragments share what a warp reads of keys and values; with more
/// than 64 elements they would not fit in its registers.
template <int D>
struct Sizes {
  static constexpr int kM = D <= 64 ? 2 : 1;
  static constexpr int kQueries = kAttentionWarps * 16 * kM;
  static constexpr int kKeys = D <= 128 ? 64 : 32;
  static constexpr int kTileBytes = (kQueries + 2 * kKeys) * kTileStride<D> * 2;
  static constexpr int kBytes = kTileBytes > kStagingBytes<D> ? kTileBytes : kStagingBytes<D>;
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

/// Scores of keys that a query does not see vanish. `count`: of the sample's keys; `position`, `key`: of the first row
/// and column.
template <int M, int N>
__device__ __forceinline__ void mask_scores(FragmentC (&s)[M][N], int count, int batch, int position, int key,
                                            const AttentionArguments& a) {
  const int lane = lane_of_thread();
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const DocumentBounds seen = keys_seen_by(a, batch, count, position + 16 * m + row_in_c(lane, 2 * half));
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i)
          if (!within(seen, key + 8 * n + column_in_c(lane, i))) s[m][n].at[i] = kMaskedScore;
    }
}

template <int M, int N>
__device__ __forceinline__ void cap_scores(FragmentC (&s)[M][N], const AttentionArguments& a) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n].at[i] = capped(a, capped_tanh(a, s[m][n].at[i]));
}

/// Scores become exp(scale (s − largest)), the largest of a row being known so far; what was summed before is scaled to
/// it.
template <int M, int N, int W>
__device__ __forceinline__ void soften(FragmentC (&s)[M][N], FragmentC (&o)[M][W], float (&largest)[M][2],
                                       float (&sum)[M][2], float scale_log2) {
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = largest[m][half];
#pragma unroll
      for (int n = 0; n < N; ++n) most = fmaxf(most, fmaxf(s[m][n].at[2 * half], s[m][n].at[2 * half + 1]));
      most = quad_max(most);
      // Where all are masked so far, their exponentials are 0, and not of what rounding leaves of a huge difference.
      const float before = exp2_fast((largest[m][half] - most) * scale_log2),
                  origin = most == kMaskedScore ? 0.0F : most * scale_log2;
      largest[m][half] = most;
      float total = 0;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[m][n].at[i] = exp2_fast(fmaf(s[m][n].at[i], scale_log2, -origin));
          total += s[m][n].at[i];
        }
      sum[m][half] = sum[m][half] * before + total;
#pragma unroll
      for (int w = 0; w < W; ++w) o[m][w].at[2 * half] *= before, o[m][w].at[2 * half + 1] *= before;
    }
}

template <typename T, int D>
__global__ void __launch_bounds__(kAttentionThreads, 2) forward(const AttentionArguments a) {
  using S = Sizes<D>;
  constexpr int kM = S::kM, kKeys = S::kKeys;
  T* const q_tile = dynamic_shared<T>();
  T* const k_tile = q_tile + S::kQueries * kTileStride<D>;
  T* const v_tile = k_tile + kKeys * kTileStride<D>;

  const int query_blocks = (a.queries + S::kQueries - 1) / S::kQueries,
            block = static_cast<int>(blockIdx.x) % query_blocks;
  const int batch_head = static_cast<int>(blockIdx.x) / query_blocks, head = batch_head % a.heads,
            batch = batch_head / a.heads;
  const int first_query = (query_blocks - 1 - block) * S::kQueries, kv_head = head / (a.heads / a.kv_heads);
  const std::int64_t token = static_cast<std::int64_t>(batch) * a.queries,
                     first_token = static_cast<std::int64_t>(batch) * a.keys;
  const T* const k = head_at<const T>(a.k, first_token, kv_head, a.head_dim);
  const T* const v = head_at<const T>(a.v, first_token, kv_head, a.v_dim);
  const int count = keys_of(a, batch), begin = first_key_of(a, batch, a.origin + first_query) / kKeys * kKeys,
            end = end_key_of(a, batch, count, a.origin + first_query, S::kQueries);
  check_length(a, batch);

  load_tile<S::kQueries, D>(q_tile, head_at<const T>(a.q, token + first_query, head, a.head_dim), a.q.stride,
                            a.queries - first_query, a.head_dim, a.vectors);
  load_tile<kKeys, D>(k_tile, k + begin * a.k.stride, a.k.stride, count - begin, a.head_dim, a.vectors);
  commit_copies();

  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = lane_of_thread(),
            warp_query = first_query + warp * 16 * kM, warp_position = a.origin + warp_query;
  const float scale_log2 = a.scale * kLog2E;
  FragmentC o[kM][D / 8];
  clear(o);
  float largest[kM][2], sum[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) largest[m][0] = largest[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0;

  for (int key = begin; key < end; key += kKeys) {
    wait_for_copies<0>();
    __syncthreads();  // keys are here, and nobody reads the values before
    load_tile<kKeys, D>(v_tile, v + key * a.v.stride, a.v.stride, count - key, a.v_dim, a.vectors);
    commit_copies();
    FragmentC s[kM][kKeys / 8];
    clear(s);
    multiply_rows<kM, kKeys / 8, D>(s, q_tile + warp * 16 * kM * kTileStride<D>, k_tile);
    wait_for_copies<0>();
    __syncthreads();  // values are here, and nobody reads the keys
    if (key + kKeys < end)
      load_tile<kKeys, D>(k_tile, k + (key + kKeys) * a.k.stride, a.k.stride, count - key - kKeys, a.head_dim,
                          a.vectors);
    commit_copies();
    if (a.softcap != 0) cap_scores(s, a);
    if (is_masked(a, batch, count, warp_position, 16 * kM, key, kKeys))
      mask_scores(s, count, batch, warp_position, key, a);
    soften(s, o, largest, sum, scale_log2);
    multiply_columns<T, kM, kKeys / 8, D>(o, s, v_tile);
  }

  wait_for_copies<0>();  // of a block of padding, which has no keys
  __syncthreads();       // the tiles become the way out
  float* const staging = dynamic_shared<float>() + warp * 16 * kTileStride<D>;
  float* const lse = a.lse + static_cast<std::int64_t>(batch_head) * a.queries;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int query = warp_query + 16 * m;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = quad_sum(sum[m][half]);
      const int row = query + row_in_c(lane, 2 * half);
      const bool padding = is_padding(a, batch, a.origin + row);
      inverse[half] = padding ? 0.0F : 1 / total;
      if (lane % 4 == 0 && row < a.queries) lse[row] = padding ? 0.0F : largest[m][half] * a.scale + logf(total);
    }
    store_rows<D>(o[m], inverse[0], inverse[1], staging, head_at<T>(a.o, token + query, head, a.v_dim), a.o.stride,
                  a.queries - query, a.v_dim, a, nullptr, batch, query);
  }
}

template <typename Fn>
void with_kernel(DType dtype, int head_dim, Fn&& fn) {
  with_narrow_type(dtype, [&]<typename T>(T) {
    with_head_dim(head_dim, [&]<int D>(std::integral_constant<int, D>) { fn(forward<T, D>, Sizes<D>{}); });
  });
}

}  // namespace

void allow_attention_forward(DType dtype, int head_dim) {
  with_kernel(dtype, head_dim, []<typename S>(auto kernel, S) { allow_shared(kernel, S::kBytes); });
}

void attention_forward(const Call& call, DType dtype, const AttentionArguments& a) {
  with_kernel(dtype, a.widest(), [&]<typename S>(auto kernel, S) {
    const unsigned blocks = blocks_for(a.queries, S::kQueries) * static_cast<unsigned>(a.heads * a.batch);
    launch(call, {.blocks = blocks, .threads = kAttentionThreads, .shared_bytes = S::kBytes}, kernel, a);
  });
}

}  // namespace trainer::kernels::cuda
