// attention_cached on GPUs. The position lies in device memory, so that a captured graph serves every token: nothing of
// a launch depends on it. One pass turns queries and puts keys and values into the caches; in the other a block has a
// query, its warps take its keys in turn, and their online softmaxes are joined at the end. A key's row is read by the
// lanes of a warp side by side. What bounds a token is the bytes of its keys and values; several query heads of a group
// read them from the cache of the device.
#include "kernels/attention_cached.h"

#include <algorithm>
#include <numbers>

#include "engine/core/op_record.h"
#include "engine/core/rope.h"
#include "kernels/cuda/attention/head.cuh"
#include "kernels/cuda/families.h"
#include "kernels/prepare.h"

namespace trainer::kernels::cuda {
namespace {

using At = CachedAttentionOperands;

constexpr int kThreads = 128, kAttendThreads = 256, kWarps = kAttendThreads / kWarp;
constexpr int kLargestPerLane = kLargestHeadDim / kWarp;
constexpr float kLog2E = 1.4426950408889634F;

struct Sizes {
  int batch = 0, tokens = 0, room = 0, heads = 0, kv_heads = 0, head_dim = 0, v_dim = 0, window = 0;
  float scale = 0, softcap = 0;
};

template <typename T>
struct Rows {
  const T *q, *k, *v;
  const std::int32_t* position;
  T *turned_q, *k_cache, *v_cache, *o;
};

/// Element `d` of a head, turned.
template <typename T>
__device__ __forceinline__ float turned(const T* head, int d, const Rotation& rotation, const CosSin* angles) {
  const float x = to_f32(head[d]);
  if (d >= 2 * rotation.half) return x;
  const int pair = rotation.interleaved ? d / 2 : d % rotation.half;
  const bool first = rotation.interleaved ? d % 2 == 0 : d < rotation.half;
  const float other = to_f32(head[first ? second_of_pair(rotation, pair) : first_of_pair(rotation, pair)]);
  return first ? x * angles[pair].cos - other * angles[pair].sin : x * angles[pair].cos + other * angles[pair].sin;
}

// A block has a token.
template <typename T>
__global__ void __launch_bounds__(kThreads) enter(const Sizes s, const Rotation rotation, const Rows<T> at) {
  __shared__ CosSin angles[kLargestHeadDim / 2];
  const std::int64_t token = blockIdx.x;
  const int position = *at.position + static_cast<int>(token % s.tokens);
  const int thread = static_cast<int>(threadIdx.x);
  for (int pair = thread; pair < rotation.half; pair += kThreads) angles[pair] = angle_at(rotation, position, pair);
  __syncthreads();
  const int q_row = s.heads * s.head_dim, k_row = s.kv_heads * s.head_dim, v_row = s.kv_heads * s.v_dim;
  for (int i = thread; i < q_row; i += kThreads)
    at.turned_q[token * q_row + i] =
        from_f32<T>(turned(at.q + token * q_row + i / s.head_dim * s.head_dim, i % s.head_dim, rotation, angles));
  if (position < 0 || position >= s.room) return;
  const std::int64_t row = token / s.tokens * s.room + position;
  for (int i = thread; i < k_row; i += kThreads)
    at.k_cache[row * k_row + i] =
        from_f32<T>(turned(at.k + token * k_row + i / s.head_dim * s.head_dim, i % s.head_dim, rotation, angles));
  for (int i = thread; i < v_row; i += kThreads) at.v_cache[row * v_row + i] = at.v[token * v_row + i];
}

/// What a warp, or several, have of a query: in units of log2.
struct Softmax {
  float largest = kMaskedScore, sum = 0;
};

// A block has a query head of a token.
template <typename T>
__global__ void __launch_bounds__(kAttendThreads) attend(const Sizes s, const Rows<T> at) {
  __shared__ float sums[kWarps][kLargestHeadDim];
  __shared__ Softmax parts[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int head = static_cast<int>(blockIdx.x) % s.heads;
  const std::int64_t token = blockIdx.x / s.heads, first_row = token / s.tokens * s.room;
  const int kv_head = head / (s.heads / s.kv_heads);
  const int position = min(*at.position + static_cast<int>(token % s.tokens), s.room - 1);
  const T* const query = at.turned_q + (token * s.heads + head) * s.head_dim;
  float q[kLargestPerLane], o[kLargestPerLane];
  const float scale = s.softcap != 0 ? s.scale / s.softcap : s.scale * kLog2E;
#pragma unroll
  for (int i = 0; i < kLargestPerLane; ++i) {
    const int d = lane + i * kWarp;
    q[i] = d < s.head_dim ? to_f32(query[d]) * scale : 0.0F;
    o[i] = 0;
  }
  Softmax mine;
  for (int key = max(position - s.window + 1, 0) + warp; key <= position; key += kWarps) {
    const T* const k = at.k_cache + ((first_row + key) * s.kv_heads + kv_head) * s.head_dim;
    const T* const v = at.v_cache + ((first_row + key) * s.kv_heads + kv_head) * s.v_dim;
    float score = 0;
#pragma unroll
    for (int i = 0; i < kLargestPerLane; ++i)
      if (lane + i * kWarp < s.head_dim) score = fmaf(q[i], to_f32(k[lane + i * kWarp]), score);
    score = warp_sum(score);
    if (s.softcap != 0) score = tanhf(score) * (s.softcap * kLog2E);
    const float most = fmaxf(mine.largest, score), shrink = exp2f(mine.largest - most), weight = exp2f(score - most);
    mine.largest = most;
    mine.sum = mine.sum * shrink + weight;
#pragma unroll
    for (int i = 0; i < kLargestPerLane; ++i)
      if (lane + i * kWarp < s.v_dim) o[i] = o[i] * shrink + weight * to_f32(v[lane + i * kWarp]);
  }
#pragma unroll
  for (int i = 0; i < kLargestPerLane; ++i) sums[warp][lane + i * kWarp] = o[i];
  if (lane == 0) parts[warp] = mine;
  __syncthreads();
  float most = parts[0].largest, total = 0;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) most = fmaxf(most, parts[w].largest);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += parts[w].sum * exp2f(parts[w].largest - most);
  for (int d = static_cast<int>(threadIdx.x); d < s.v_dim; d += kAttendThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][d] * exp2f(parts[w].largest - most);
    at.o[(token * s.heads + head) * s.v_dim + d] = from_f32<T>(sum / total);
  }
}

}  // namespace

Prepared prepare_attention_cached(const Signature& signature, const Context&) {
  const CachedAttentionShape a = cached_attention_shape(signature);
  const DType dtype = expect_compute_dtype(signature, At::q);
  CHECK(std::max(a.head_dim, a.v_dim) <= kLargestHeadDim,
        describe(signature) + ": on GPUs a head has at most " + std::to_string(kLargestHeadDim) + " elements");
  Sizes s;
  s.batch = static_cast<int>(a.batch), s.tokens = static_cast<int>(a.tokens), s.room = static_cast<int>(a.room);
  s.heads = static_cast<int>(a.heads), s.kv_heads = static_cast<int>(a.kv_heads);
  s.head_dim = static_cast<int>(a.head_dim), s.v_dim = static_cast<int>(a.v_dim);
  s.window = static_cast<int>(a.window);
  s.scale = static_cast<float>(a.scale), s.softcap = static_cast<float>(a.softcap);
  return make_kernel([s, dtype, rotation = rotation_of(signature, a.head_dim)](const Call& call) {
    with_type(dtype, [&]<typename T>(T) {
      const Rows<T> at{.q = operand<const T>(call, At::q),
                       .k = operand<const T>(call, At::k),
                       .v = operand<const T>(call, At::v),
                       .position = operand<const std::int32_t>(call, At::position),
                       .turned_q = static_cast<T*>(call.workspace),
                       .k_cache = operand<T>(call, At::k_cache),
                       .v_cache = operand<T>(call, At::v_cache),
                       .o = operand<T>(call, At::o)};
      const std::int64_t tokens = static_cast<std::int64_t>(s.batch) * s.tokens;
      launch(call, {.blocks = blocks_for(tokens, 1), .threads = kThreads}, enter<T>, s, rotation, at);
      launch(call, {.blocks = blocks_for(tokens * s.heads, 1), .threads = kAttendThreads}, attend<T>, s, at);
    });
  });
}

}  // namespace trainer::kernels::cuda
