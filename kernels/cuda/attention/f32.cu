// attention and attention_grad of f32, by plain FMAs: no tensor core multiplies f32 as such. The algorithms are those
// of forward.cu and backward.cu, with tiles of 32 × 32 whose probabilities go through shared memory. A block is 16 × 16
// threads; thread (y, x) makes elements (y + 16 i, x + 16 j) of every product. Rows of tiles have one float more, so
// that those of a column lie in different banks.
#include "kernels/cuda/attention/head.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kSide = 16, kRows = 32, kPerSide = kRows / kSide;
constexpr int kScoreStride = kRows + 1;
constexpr float kLog2E = 1.4426950408889634F;

template <int D>
constexpr int kStride = D + 1;
template <int D>
constexpr int kTile = kRows* kStride<D>;  // floats
constexpr int kScores = kRows * kScoreStride;

template <int D>
constexpr std::size_t kForwardBytes = (2 * kTile<D> + kScores + 3 * kRows) * sizeof(float);
template <int D>
constexpr std::size_t kBackwardBytes = (4 * kTile<D> + 2 * kScores + 2 * kRows) * sizeof(float);

__device__ __forceinline__ int thread_y() { return static_cast<int>(threadIdx.x) / kSide; }
__device__ __forceinline__ int thread_x() { return static_cast<int>(threadIdx.x) % kSide; }

/// Zeros where no token and no element is.
template <int D>
__device__ __forceinline__ void load_rows(float* tile, const float* from, std::int64_t stride, int valid,
                                          int head_dim) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * D; i += kThreads) {
    const int row = i / D, column = i % D;
    tile[row * kStride<D> + column] = row < valid && column < head_dim ? from[row * stride + column] : 0.0F;
  }
}

/// s += a · bᵀ.
template <int D>
__device__ __forceinline__ void multiply_rows(float (&s)[kPerSide][kPerSide], const float* a, const float* b) {
#pragma unroll 8
  for (int d = 0; d < D; ++d)
#pragma unroll
    for (int i = 0; i < kPerSide; ++i)
#pragma unroll
      for (int j = 0; j < kPerSide; ++j)
        s[i][j] =
            fmaf(a[(thread_y() + kSide * i) * kStride<D> + d], b[(thread_x() + kSide * j) * kStride<D> + d], s[i][j]);
}

/// o(i, d) += Σ_k p(i, k) b(k, d), with p(i, k) = scores[i · row + k · column].
template <int D>
__device__ __forceinline__ void multiply_columns(float (&o)[kPerSide][D / kSide], const float* scores, int row,
                                                 int column, const float* b) {
#pragma unroll 4
  for (int k = 0; k < kRows; ++k)
#pragma unroll
    for (int i = 0; i < kPerSide; ++i) {
      const float p = scores[(thread_y() + kSide * i) * row + k * column];
#pragma unroll
      for (int j = 0; j < D / kSide; ++j) o[i][j] = fmaf(p, b[k * kStride<D> + thread_x() + kSide * j], o[i][j]);
    }
}

template <int W>
__device__ __forceinline__ void clear(float (&o)[kPerSide][W]) {
#pragma unroll
  for (int i = 0; i < kPerSide; ++i)
#pragma unroll
    for (int j = 0; j < W; ++j) o[i][j] = 0;
}

/// Through `staging`, a tile that nobody reads any more, to a head's tokens; turned back where there is a rotation.
template <int D>
__device__ __forceinline__ void store_rows(const float (&o)[kPerSide][D / kSide], float factor, float* staging,
                                           float* to, std::int64_t stride, int valid, int head_dim,
                                           const AttentionArguments& a, const Rotation* rotation, int batch,
                                           int position) {
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerSide; ++i)
#pragma unroll
    for (int j = 0; j < D / kSide; ++j)
      staging[(thread_y() + kSide * i) * kStride<D> + thread_x() + kSide * j] = o[i][j] * factor;
  __syncthreads();
  if (rotation != nullptr && rotation->half > 0) {
    turn_rows<kRows>(staging, kStride<D>, a, batch, *rotation, position, -1.0F, static_cast<int>(threadIdx.x),
                     kThreads);
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < kRows * D; i += kThreads) {
    const int row = i / D, column = i % D;
    if (row < valid && column < head_dim) to[row * stride + column] = staging[row * kStride<D> + column];
  }
}

// ---- Forward ----

/// Eight lanes have a row of scores: it becomes exp2(s − largest); largest, sum and the factor of what was summed
/// before are kept.
__device__ __forceinline__ void soften(float* scores, float* largest, float* sum, float* before) {
  const int row = static_cast<int>(threadIdx.x) / 8, lane = static_cast<int>(threadIdx.x) % 8;
  float* const s = scores + row * kScoreStride;
  const float known = largest[row];
  float most = known, total = 0;
  for (int j = lane; j < kRows; j += 8) most = fmaxf(most, s[j]);
#pragma unroll
  for (int step = 4; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
  for (int j = lane; j < kRows; j += 8) {
    s[j] = exp2f(s[j] - most);
    total += s[j];
  }
#pragma unroll
  for (int step = 4; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
  __syncwarp();  // all lanes have read `largest`
  if (lane != 0) return;
  before[row] = exp2f(known - most);
  sum[row] = sum[row] * before[row] + total;
  largest[row] = most;
}

template <int D>
__global__ void __launch_bounds__(kThreads) forward(const AttentionArguments a) {
  float* const q_tile = dynamic_shared<float>();
  float* const kv_tile = q_tile + kTile<D>;
  float* const scores = kv_tile + kTile<D>;
  float *const largest = scores + kScores, *const sum = largest + kRows, *const before = sum + kRows;

  const int query_blocks = (a.queries + kRows - 1) / kRows, batch_head = static_cast<int>(blockIdx.x) / query_blocks;
  const int first_query = (query_blocks - 1 - static_cast<int>(blockIdx.x) % query_blocks) * kRows;
  const int head = batch_head % a.heads, batch = batch_head / a.heads, kv_head = head / (a.heads / a.kv_heads);
  const std::int64_t token = static_cast<std::int64_t>(batch) * a.queries,
                     key_token = static_cast<std::int64_t>(batch) * a.keys;
  const int first_position = a.origin + first_query;
  const float scale_log2 = a.scale * kLog2E;
  check_length(a, batch);
  if (threadIdx.x < kRows) largest[threadIdx.x] = -INFINITY, sum[threadIdx.x] = 0;
  load_rows<D>(q_tile, head_at<const float>(a.q, token + first_query, head, a.head_dim), a.q.stride,
               a.queries - first_query, a.head_dim);
  float o[kPerSide][D / kSide];
  clear(o);
  const int count = keys_of(a, batch), end = end_key_of(a, batch, count, first_position, kRows);
  for (int key = first_key_of(a, batch, first_position) / kRows * kRows; key < end; key += kRows) {
    __syncthreads();  // nobody reads the values before
    load_rows<D>(kv_tile, head_at<const float>(a.k, key_token + key, kv_head, a.head_dim), a.k.stride, count - key,
                 a.head_dim);
    __syncthreads();
    float s[kPerSide][kPerSide];
    clear(s);
    multiply_rows<D>(s, q_tile, kv_tile);
#pragma unroll
    for (int i = 0; i < kPerSide; ++i) {
      const int row = thread_y() + kSide * i;
      const DocumentBounds seen = keys_seen_by(a, batch, count, first_position + row);
#pragma unroll
      for (int j = 0; j < kPerSide; ++j) {
        const int column = thread_x() + kSide * j;
        const float score = a.softcap != 0 ? capped(a, capped_tanh(a, s[i][j])) : s[i][j];
        scores[row * kScoreStride + column] = within(seen, key + column) ? score * scale_log2 : kMaskedScore;
      }
    }
    __syncthreads();
    load_rows<D>(kv_tile, head_at<const float>(a.v, key_token + key, kv_head, a.v_dim), a.v.stride, count - key,
                 a.v_dim);
    soften(scores, largest, sum, before);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPerSide; ++i)
#pragma unroll
      for (int j = 0; j < D / kSide; ++j) o[i][j] *= before[thread_y() + kSide * i];
    multiply_columns<D>(o, scores, kScoreStride, 1, kv_tile);
  }
  __syncthreads();  // of a block of padding, which has no keys
#pragma unroll
  for (int i = 0; i < kPerSide; ++i) {
    const int row = thread_y() + kSide * i;
    const bool padding = is_padding(a, batch, first_position + row);
#pragma unroll
    for (int j = 0; j < D / kSide; ++j) o[i][j] = padding ? 0.0F : o[i][j] / sum[row];
  }
  if (const int row = static_cast<int>(threadIdx.x); row < kRows && first_query + row < a.queries)
    a.lse[static_cast<std::int64_t>(batch_head) * a.queries + first_query + row] =
        is_padding(a, batch, first_position + row) ? 0.0F : largest[row] / kLog2E + logf(sum[row]);
  store_rows<D>(o, 1.0F, q_tile, head_at<float>(a.o, token + first_query, head, a.v_dim), a.o.stride,
                a.queries - first_query, a.v_dim, a, nullptr, batch, first_query);
}

// ---- Backward ----

/// Probabilities and their gradients of queries from `query` on and keys from `key` on; zero where nothing counts.
template <int D>
__device__ __forceinline__ void scores_again(const AttentionArguments& a, int count, int batch, int query, int key,
                                             const float* q, const float* k, const float* d_o, const float* v,
                                             const float* lse_log2, const float* delta, float* p, float* ds) {
  float s[kPerSide][kPerSide], dp[kPerSide][kPerSide];
  clear(s), clear(dp);
  multiply_rows<D>(s, q, k);
  multiply_rows<D>(dp, d_o, v);
  const float scale_log2 = a.scale * kLog2E;
#pragma unroll
  for (int i = 0; i < kPerSide; ++i) {
    const int row = thread_y() + kSide * i;
    const DocumentBounds seen = keys_seen_by(a, batch, count, a.origin + query + row);
#pragma unroll
    for (int j = 0; j < kPerSide; ++j) {
      const int column = thread_x() + kSide * j;
      const bool counts = query + row < a.queries && within(seen, key + column);
      const float tanh = a.softcap != 0 ? capped_tanh(a, s[i][j]) : 0.0F,
                  score = a.softcap != 0 ? capped(a, tanh) : s[i][j];
      const float probability = counts ? exp2f(score * scale_log2 - lse_log2[row]) : 0.0F;
      p[row * kScoreStride + column] = probability;
      ds[row * kScoreStride + column] = counts ? probability * (dp[i][j] - delta[row]) * (1 - tanh * tanh) : 0.0F;
    }
  }
}

__device__ __forceinline__ void load_statistics(float* lse_log2, float* delta, const AttentionArguments& a,
                                                std::int64_t first, int valid) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kRows) return;
  lse_log2[i] = i < valid ? a.lse[first + i] * kLog2E : 0.0F;
  delta[i] = i < valid ? a.delta[first + i] : 0.0F;
}

template <int D>
__global__ void __launch_bounds__(kThreads) keys(const AttentionArguments a, const Rotation rotation) {
  float* const k_tile = dynamic_shared<float>();
  float *const v_tile = k_tile + kTile<D>, *const q_tile = v_tile + kTile<D>, *const do_tile = q_tile + kTile<D>;
  float *const p = do_tile + kTile<D>, *const ds = p + kScores, *const lse_log2 = ds + kScores,
               *const delta = lse_log2 + kRows;

  const int key_blocks = (a.keys + kRows - 1) / kRows, batch_head = static_cast<int>(blockIdx.x) / key_blocks,
            group = a.heads / a.kv_heads;
  const int first_key = static_cast<int>(blockIdx.x) % key_blocks * kRows, kv_head = batch_head % a.kv_heads,
            batch = batch_head / a.kv_heads, count = keys_of(a, batch);
  const std::int64_t token = static_cast<std::int64_t>(batch) * a.keys,
                     query_token = static_cast<std::int64_t>(batch) * a.queries;
  load_rows<D>(k_tile, head_at<const float>(a.k, token + first_key, kv_head, a.head_dim), a.k.stride, count - first_key,
               a.head_dim);
  load_rows<D>(v_tile, head_at<const float>(a.v, token + first_key, kv_head, a.v_dim), a.v.stride, count - first_key,
               a.v_dim);
  float dk[kPerSide][D / kSide], dv[kPerSide][D / kSide];
  clear(dk), clear(dv);
  const int first_query = first_query_of(a, batch, first_key) / kRows * kRows,
            end_query = end_query_of(a, batch, first_key, kRows);
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int query = first_query; query < end_query; query += kRows) {
      __syncthreads();
      load_rows<D>(q_tile, head_at<const float>(a.q, query_token + query, head, a.head_dim), a.q.stride,
                   a.queries - query, a.head_dim);
      load_rows<D>(do_tile, head_at<const float>(a.d_o, query_token + query, head, a.v_dim), a.d_o.stride,
                   a.queries - query, a.v_dim);
      load_statistics(lse_log2, delta, a, (static_cast<std::int64_t>(batch) * a.heads + head) * a.queries + query,
                      a.queries - query);
      __syncthreads();
      scores_again<D>(a, count, batch, query, first_key, q_tile, k_tile, do_tile, v_tile, lse_log2, delta, p, ds);
      __syncthreads();
      multiply_columns<D>(dv, p, 1, kScoreStride, do_tile);
      multiply_columns<D>(dk, ds, 1, kScoreStride, q_tile);
    }
  store_rows<D>(dk, a.scale, q_tile, head_at<float>(a.dk, token + first_key, kv_head, a.head_dim), a.dk.stride,
                a.keys - first_key, a.head_dim, a, &rotation, batch, first_key);
  store_rows<D>(dv, 1.0F, q_tile, head_at<float>(a.dv, token + first_key, kv_head, a.v_dim), a.dv.stride,
                a.keys - first_key, a.v_dim, a, nullptr, batch, first_key);
}

template <int D>
__global__ void __launch_bounds__(kThreads, 2) queries(const AttentionArguments a, const Rotation rotation) {
  float* const q_tile = dynamic_shared<float>();
  float *const do_tile = q_tile + kTile<D>, *const k_tile = do_tile + kTile<D>, *const v_tile = k_tile + kTile<D>;
  float *const p = v_tile + kTile<D>, *const ds = p + kScores, *const lse_log2 = ds + kScores,
               *const delta = lse_log2 + kRows;

  const int query_blocks = (a.queries + kRows - 1) / kRows, batch_head = static_cast<int>(blockIdx.x) / query_blocks;
  const int first_query = (query_blocks - 1 - static_cast<int>(blockIdx.x) % query_blocks) * kRows;
  const int head = batch_head % a.heads, batch = batch_head / a.heads, kv_head = head / (a.heads / a.kv_heads);
  const std::int64_t token = static_cast<std::int64_t>(batch) * a.queries,
                     key_token = static_cast<std::int64_t>(batch) * a.keys;
  const int first_position = a.origin + first_query;
  load_rows<D>(q_tile, head_at<const float>(a.q, token + first_query, head, a.head_dim), a.q.stride,
               a.queries - first_query, a.head_dim);
  load_rows<D>(do_tile, head_at<const float>(a.d_o, token + first_query, head, a.v_dim), a.d_o.stride,
               a.queries - first_query, a.v_dim);
  load_statistics(lse_log2, delta, a, static_cast<std::int64_t>(batch_head) * a.queries + first_query,
                  a.queries - first_query);
  float dq[kPerSide][D / kSide];
  clear(dq);
  const int count = keys_of(a, batch), end = end_key_of(a, batch, count, first_position, kRows);
  for (int key = first_key_of(a, batch, first_position) / kRows * kRows; key < end; key += kRows) {
    __syncthreads();
    load_rows<D>(k_tile, head_at<const float>(a.k, key_token + key, kv_head, a.head_dim), a.k.stride, count - key,
                 a.head_dim);
    load_rows<D>(v_tile, head_at<const float>(a.v, key_token + key, kv_head, a.v_dim), a.v.stride, count - key,
                 a.v_dim);
    __syncthreads();
    scores_again<D>(a, count, batch, first_query, key, q_tile, k_tile, do_tile, v_tile, lse_log2, delta, p, ds);
    __syncthreads();
    multiply_columns<D>(dq, ds, kScoreStride, 1, k_tile);
  }
  store_rows<D>(dq, a.scale, q_tile, head_at<float>(a.dq, token + first_query, head, a.head_dim), a.dq.stride,
                a.queries - first_query, a.head_dim, a, &rotation, batch, first_position);
}

template <typename Fn>
void with_head_dim(int head_dim, Fn&& fn) {
  if (head_dim <= 64)
    fn(std::integral_constant<int, 64>{});
  else if (head_dim <= 128)
    fn(std::integral_constant<int, 128>{});
  else
    fn(std::integral_constant<int, kLargestHeadDim>{});
}

}  // namespace

void allow_attention_forward_f32(int head_dim) {
  with_head_dim(head_dim, []<int D>(std::integral_constant<int, D>) { allow_shared(forward<D>, kForwardBytes<D>); });
}

void allow_attention_backward_f32(int head_dim) {
  with_head_dim(head_dim, []<int D>(std::integral_constant<int, D>) {
    allow_shared(keys<D>, kBackwardBytes<D>), allow_shared(queries<D>, kBackwardBytes<D>);
  });
}

void attention_forward_f32(const Call& call, const AttentionArguments& a) {
  with_head_dim(a.widest(), [&]<int D>(std::integral_constant<int, D>) {
    const unsigned blocks = blocks_for(a.queries, kRows) * static_cast<unsigned>(a.heads * a.batch);
    launch(call, {.blocks = blocks, .threads = kThreads, .shared_bytes = kForwardBytes<D>}, forward<D>, a);
  });
}

void attention_backward_f32(const Call& call, const AttentionArguments& a, const Rotation& rotation) {
  with_head_dim(a.widest(), [&]<int D>(std::integral_constant<int, D>) {
    const unsigned of_key_blocks = blocks_for(a.keys, kRows) * static_cast<unsigned>(a.batch * a.kv_heads);
    const unsigned of_query_blocks = blocks_for(a.queries, kRows) * static_cast<unsigned>(a.batch * a.heads);
    launch(call, {.blocks = of_key_blocks, .threads = kThreads, .shared_bytes = kBackwardBytes<D>}, keys<D>, a,
           rotation);
    launch(call, {.blocks = of_query_blocks, .threads = kThreads, .shared_bytes = kBackwardBytes<D>}, queries<D>, a,
           rotation);
  });
}

}  // namespace trainer::kernels::cuda
