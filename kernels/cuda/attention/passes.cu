// What attention needs before its products: the bounds of documents, queries and keys turned by RoPE, and delta = do ·
// o.
#include "kernels/cuda/attention/head.cuh"
#include "kernels/cuda/runtime/documents.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// A thread has a position.
__global__ void __launch_bounds__(kThreads)
    find(const AttentionArguments a, const std::int32_t* numbers, DocumentBounds* to) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= static_cast<std::int64_t>(a.batch) * a.keys) return;
  const int position = static_cast<int>(token % a.keys);
  const std::int32_t* const row = numbers + (token - position);
  const std::int32_t number = row[position];
  if (a.fault != nullptr) check_document(a.fault, row, position, token / a.keys, a.keys);
  const DocumentBounds own{first_not_below(row, position, number), first_above(row, position, a.keys, number)};
  to[token] = number < 0 ? DocumentBounds{a.keys, own.first} : own;
}

/// The rows of head `head` of q and then k, of one position: where they come from and go to.
template <typename T>
struct HeadCopy {
  const T* from;
  T* to;
};
template <typename T>
__device__ __forceinline__ HeadCopy<T> head_copy(const AttentionArguments& a, const HeadRows& to_q,
                                                 const HeadRows& to_k, int head, std::int64_t token,
                                                 std::int64_t query_token) {
  if (head < a.heads)
    return {head_at<const T>(a.q, query_token, head, a.head_dim), head_at<T>(to_q, query_token, head, a.head_dim)};
  return {head_at<const T>(a.k, token, head - a.heads, a.head_dim),
          head_at<T>(to_k, token, head - a.heads, a.head_dim)};
}

// A block has a position of a sample: its angles once, then all heads of k, and of q where a query stands there. N
// pairs at a time, which for N > 1 are pairs of halves; then what does not turn.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    rotate(const AttentionArguments a, const Rotation rotation, HeadRows to_q, HeadRows to_k) {
  __shared__ CosSin angles[kLargestHeadDim / 2];
  const std::int64_t token = blockIdx.x;
  const int position = static_cast<int>(token % a.keys), query = position - a.origin;
  const std::int64_t query_token = token / a.keys * a.queries + query;
  for (int pair = static_cast<int>(threadIdx.x); pair < rotation.half; pair += kThreads)
    angles[pair] = angle_at(rotation, place_of(a, static_cast<int>(token / a.keys), position), pair);
  __syncthreads();
  const int per_head = rotation.half / N, first_head = query >= 0 && query < a.queries ? 0 : a.heads,
            heads = a.heads + a.kv_heads, step = N > 1 || !rotation.interleaved ? 1 : 2,
            other = N > 1 || !rotation.interleaved ? rotation.half : 1;
  for (int i = first_head * per_head + static_cast<int>(threadIdx.x); i < heads * per_head; i += kThreads) {
    const int first = i % per_head * N;
    const HeadCopy<T> head = head_copy<T>(a, to_q, to_k, i / per_head, token, query_token);
    const T* const from = head.from + first * step;
    T* const to = head.to + first * step;
    Vec<T, N> x = load<N>(from, 0), y = load<N>(from + other, 0);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const CosSin angle = angles[first + e];
      const float left = to_f32(x[e]), right = to_f32(y[e]);
      x[e] = from_f32<T>(left * angle.cos - right * angle.sin);
      y[e] = from_f32<T>(right * angle.cos + left * angle.sin);
    }
    store(to, 0, x);
    store(to + other, 0, y);
  }
  const int rest = a.head_dim - 2 * rotation.half;
  for (int i = first_head * rest + static_cast<int>(threadIdx.x); i < heads * rest; i += kThreads) {
    const int column = 2 * rotation.half + i % rest;
    const HeadCopy<T> head = head_copy<T>(a, to_q, to_k, i / rest, token, query_token);
    head.to[column] = head.from[column];
  }
}

/// Over each group of kLanes lanes.
template <int kLanes>
__device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// kLanes lanes have a head of a token: as many as it has vectors, so that none is idle.
template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads) products(const AttentionArguments a) {
  constexpr int kN = kVector<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int row = static_cast<int>(blockIdx.x) * (kThreads / kLanes) +
                  static_cast<int>(threadIdx.x) / kLanes;  // token · heads + head
  const bool there = row < a.batch * a.queries * a.heads;
  const int token = row / a.heads, head = row - token * a.heads, batch = token / a.queries;
  float sum = 0;
  if (there) {
    const T* const d_o = head_at<const T>(a.d_o, token, head, a.v_dim);
    const T* const o = head_at<const T>(a.o, token, head, a.v_dim);
    if (a.vectors) {
      for (int i = lane; i < a.v_dim / kN; i += kLanes) {
        const Vec<T, kN> x = load<kN>(d_o, i), y = load<kN>(o, i);
#pragma unroll
        for (int e = 0; e < kN; ++e) sum = fmaf(to_f32(x[e]), to_f32(y[e]), sum);
      }
    } else {
      for (int i = lane; i < a.v_dim; i += kLanes) sum = fmaf(to_f32(d_o[i]), to_f32(o[i]), sum);
    }
  }
  sum = lanes_sum<kLanes>(sum);
  if (there && lane == 0) a.delta[(batch * a.heads + head) * a.queries + token - batch * a.queries] = sum;
}

}  // namespace

void find_document_bounds(const Call& call, const AttentionArguments& a, const std::int32_t* numbers,
                          DocumentBounds* to) {
  launch(call, {.blocks = blocks_for(static_cast<std::int64_t>(a.batch) * a.keys, kThreads), .threads = kThreads}, find,
         a, numbers, to);
}

void rotate_heads(const Call& call, DType dtype, const AttentionArguments& a, const Rotation& rotation, HeadRows to_q,
                  HeadRows to_k) {
  with_type(dtype, [&]<typename T>(T) {
    const Grid grid{.blocks = blocks_for(static_cast<std::int64_t>(a.batch) * a.keys, 1), .threads = kThreads};
    if (a.vectors && !rotation.interleaved && in_vectors<T>(rotation.half))
      launch(call, grid, rotate<T, kVector<T>>, a, rotation, to_q, to_k);
    else
      launch(call, grid, rotate<T, 1>, a, rotation, to_q, to_k);
  });
}

void attention_delta(const Call& call, DType dtype, const AttentionArguments& a) {
  const std::int64_t rows = static_cast<std::int64_t>(a.batch) * a.queries * a.heads;
  CHECK(rows < std::int64_t{1} << 31, "heads of tokens are counted in 32 bits");
  with_type(dtype, [&]<typename T>(T) {
    const int loads = a.vectors ? a.v_dim / kVector<T> : a.v_dim;
    const auto with = [&]<int kLanes>(std::integral_constant<int, kLanes>) {
      launch(call, {.blocks = blocks_for(rows, kThreads / kLanes), .threads = kThreads}, products<T, kLanes>, a);
    };
    if (loads <= 4)
      with(std::integral_constant<int, 4>{});
    else if (loads <= 8)
      with(std::integral_constant<int, 8>{});
    else if (loads <= 16)
      with(std::integral_constant<int, 16>{});
    else
      with(std::integral_constant<int, kWarp>{});
  });
}

}  // namespace trainer::kernels::cuda
