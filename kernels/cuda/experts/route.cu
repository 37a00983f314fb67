// What a router does behind its logits, and weigh and row_dots. A warp has a token: its lanes walk the experts, whose
// scores lie in shared memory. Scores are f32. A router is a small part of the work of its experts.
#include "engine/core/op_record.h"
#include "kernels/cuda/experts/balance.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"
#include "kernels/experts.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp,
              kTokens = 32;      // of a block where it counts a sample's choices first
constexpr float kTiny = 1e-20F;  // of DeepSeek's normalisation
constexpr std::int64_t kMostExperts = 1024;

struct Router {
  int batch, seq, experts, k, groups, top_groups;
  bool sigmoid, normalize;
  float scale, aux, z;
  __host__ __device__ std::int64_t tokens() const { return static_cast<std::int64_t>(batch) * seq; }
};

// ---- Device ----

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % kWarp; }

/// The scores of a token in `s`, which the warp may then read; returns log Σ exp of its logits.
template <typename T>
__device__ float scores_of(const Router& r, const T* logits, float* s) {
  float most = -INFINITY, sum = 0;
  for (int e = lane_id(); e < r.experts; e += kWarp) {
    s[e] = to_f32(logits[e]);
    most = s[e] > most ? s[e] : most;
  }
  most = warp_max(most);
  for (int e = lane_id(); e < r.experts; e += kWarp) sum += expf(s[e] - most);
  sum = warp_sum(sum);
  for (int e = lane_id(); e < r.experts; e += kWarp) s[e] = r.sigmoid ? 1 / (1 + expf(-s[e])) : expf(s[e] - most) / sum;
  __syncwarp();
  return most + logf(sum);
}

/// -inf in `by` of experts whose group is none of the best. `best` has a number for each group.
__device__ void limit_groups(const Router& r, float* by, float* best) {
  const int size = r.experts / r.groups;
  for (int g = lane_id(); g < r.groups; g += kWarp) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      const float x = by[e];
      second = fmaxf(second, fminf(first, x));
      first = fmaxf(first, x);
    }
    best[g] = first + second;
  }
  __syncwarp();
  for (int e = lane_id(); e < r.experts; e += kWarp) {
    const int g = e / size;
    int better = 0;
    for (int other = 0; other < r.groups; ++other)
      better += best[other] > best[g] || (best[other] == best[g] && other < g) ? 1 : 0;
    if (better >= r.top_groups) by[e] = -INFINITY;
  }
  __syncwarp();
}

/// The expert with the largest `by` that is not `taken`, the first of equals: the same in every lane.
__device__ int best_of(const Router& r, const float* by, const unsigned char* taken) {
  float most = 0;
  int best = -1;
  for (int e = lane_id(); e < r.experts; e += kWarp)
    if (taken[e] == 0 && (best < 0 || by[e] > most)) most = by[e], best = e;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, most, step);
    const int its = __shfl_xor_sync(kAllLanes, best, step);
    const bool takes = its >= 0 && (best < 0 || other > most || (!(most > other) && its < best));
    if (takes) most = other, best = its;
  }
  return best;
}

/// Of each warp: scores, what is chosen by, a number for each group (at most as many as experts), and flags.
__host__ __device__ constexpr std::size_t route_bytes(int experts) { return static_cast<std::size_t>(experts) * 16; }

template <typename T>
__global__ void __launch_bounds__(kThreads)
    route(Router r, const T* logits, const float* bias, float* weights, std::int32_t* choices) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (token >= r.tokens()) return;
  float* const s = dynamic_shared<float>() + (threadIdx.x / kWarp) * (route_bytes(r.experts) / sizeof(float));
  float *const by = s + r.experts, *const best = by + r.experts;
  auto* const taken = reinterpret_cast<unsigned char*>(best + r.experts);
  scores_of(r, logits + token * r.experts, s);
  for (int e = lane_id(); e < r.experts; e += kWarp) {
    by[e] = s[e] + (bias == nullptr ? 0.0F : bias[e]);
    taken[e] = 0;
  }
  __syncwarp();
  if (r.groups > 1) limit_groups(r, by, best);
  float sum = kTiny;
  for (int j = 0; j < r.k; ++j) {
    const int expert = best_of(r, by, taken);
    sum += s[expert];
    if (lane_id() == 0) {
      taken[expert] = 1;
      choices[token * r.k + j] = expert;
    }
    __syncwarp();
  }
  for (int j = lane_id(); j < r.k; j += kWarp)
    weights[token * r.k + j] = r.scale * s[choices[token * r.k + j]] / (r.normalize ? sum : 1.0F);
}

/// How many of a sample's choices are each expert, in `counts`.
__device__ void count_sample(const Router& r, const std::int32_t* choices, int* counts) {
  for (int e = static_cast<int>(threadIdx.x); e < r.experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < r.seq * r.k; i += kThreads) atomicAdd(&counts[choices[i]], 1);
  __syncthreads();
}

/// Of each warp scores and slopes; of the block counts.
__host__ __device__ constexpr std::size_t grad_bytes(int experts) {
  return static_cast<std::size_t>(experts) * 4 * (2 * kWarps + 1);
}

// Block y has sample y, block x of it kTokens tokens.
template <typename T>
__global__ void __launch_bounds__(kThreads) route_grad(Router r, const float* dweights, const T* logits,
                                                       const std::int32_t* choices, const float* seed, T* dlogits) {
  auto* const counts = dynamic_shared<int>();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  float* const s = reinterpret_cast<float*>(counts + r.experts) + 2 * warp * r.experts;
  float* const ds = s + r.experts;
  const std::int64_t sample = blockIdx.y;
  const bool losses = seed != nullptr;
  if (losses) count_sample(r, choices + sample * r.seq * r.k, counts);
  const float seq = static_cast<float>(r.seq);
  const float per_count =
      losses ? *seed * r.aux * static_cast<float>(r.experts) / (seq * static_cast<float>(r.k)) / seq : 0.0F;
  const float per_lse = losses ? 2 * *seed * r.z / seq : 0.0F;
  const int last = min((static_cast<int>(blockIdx.x) + 1) * kTokens, r.seq);
  for (int t = static_cast<int>(blockIdx.x) * kTokens + warp; t < last; t += kWarps) {
    const std::int64_t token = sample * r.seq + t;
    const float lse = scores_of(r, logits + token * r.experts, s);
    float sum = kTiny;
    for (int j = 0; j < r.k; ++j) sum += s[choices[token * r.k + j]];
    float all = 0, mean = 0;
    if (losses) {
      for (int e = lane_id(); e < r.experts; e += kWarp) all += s[e];
      all = warp_sum(all);
      for (int e = lane_id(); e < r.experts; e += kWarp) mean += per_count * static_cast<float>(counts[e]) * s[e] / all;
      mean = warp_sum(mean);
    }
    for (int e = lane_id(); e < r.experts; e += kWarp)
      ds[e] = losses ? (per_count * static_cast<float>(counts[e]) - mean) / all : 0.0F;
    __syncwarp();
    for (int j = lane_id(); j < r.k; j += kWarp) {
      const float dw = dweights[token * r.k + j];
      float apart = 0;  // of the other weights; 0 where there is one, which is then always 1
      for (int i = 0; i < r.k; ++i) apart += s[choices[token * r.k + i]] * (dw - dweights[token * r.k + i]);
      ds[choices[token * r.k + j]] += r.scale * (r.normalize ? apart / (sum * sum) : dw);
    }
    __syncwarp();
    float inner = 0;
    for (int e = lane_id(); e < r.experts; e += kWarp) inner += ds[e] * s[e];
    inner = warp_sum(inner);
    for (int e = lane_id(); e < r.experts; e += kWarp) {
      float slope = r.sigmoid ? ds[e] * s[e] * (1 - s[e]) : s[e] * (ds[e] - inner);
      if (per_lse != 0) slope += per_lse * lse * expf(to_f32(logits[token * r.experts + e]) - lse);
      dlogits[token * r.experts + e] = from_f32<T>(slope);
    }
    __syncwarp();
  }
}

// A block has a sample; thread 0 counts, in the order that the rule gives. Some microseconds for a thousand choices.
__global__ void expert_capacity(int seq, int k, int experts, std::int64_t capacity, const std::int32_t* choices,
                                std::int32_t* kept) {
  auto* const counts = dynamic_shared<int>();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * seq * k;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int j = 0; j < k; ++j)
    for (int t = 0; t < seq; ++t) {
      const std::int64_t at = first + static_cast<std::int64_t>(t) * k + j;
      const std::int32_t expert = choices[at];
      kept[at] = ++counts[expert] <= capacity ? expert : -1;
    }
}

// A block has a sample, and leaves its two sums in `partial`.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sample_losses(Router r, const T* logits, const std::int32_t* choices, const std::int32_t* kept, double* partial) {
  auto* const counts = dynamic_shared<int>();
  __shared__ double shared[kThreads / kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  float* const s = reinterpret_cast<float*>(counts + r.experts) + 2 * warp * r.experts;
  const std::int64_t sample = blockIdx.x;
  count_sample(r, choices + sample * r.seq * r.k, counts);
  double aux = 0, squares = 0, left_out = 0;  // of this thread; log Σ exp of lane 0 alone
  for (int t = warp; t < r.seq; t += kWarps) {
    const float lse = scores_of(r, logits + (sample * r.seq + t) * r.experts, s);
    float all = 0, dot = 0;
    for (int e = lane_id(); e < r.experts; e += kWarp) {
      all += s[e];
      dot += s[e] * static_cast<float>(counts[e]);
    }
    all = warp_sum(all);
    aux += static_cast<double>(dot / all);
    if (lane_id() == 0) squares += static_cast<double>(lse) * static_cast<double>(lse);
    __syncwarp();
  }
  for (int i = static_cast<int>(threadIdx.x); kept != nullptr && i < r.seq * r.k; i += kThreads)
    left_out += kept[sample * r.seq * r.k + i] < 0 ? 1 : 0;
  const double seq = r.seq;
  const double loss = block_sum<kThreads>(
      static_cast<double>(r.aux) * r.experts * aux / (seq * seq * r.k) + static_cast<double>(r.z) * squares / seq,
      shared);
  __syncthreads();
  left_out = block_sum<kThreads>(left_out, shared);
  if (threadIdx.x != 0) return;
  partial[2 * sample] = loss;
  partial[2 * sample + 1] = left_out;
}

__global__ void add_losses(int batch, const double* partial, double* sums) {
  for (int i = 0; i < batch; ++i) sums[threadIdx.x] += partial[2 * i + static_cast<int>(threadIdx.x)];
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    weigh(const T* x, const float* weights, T* y, Divisor columns, std::int64_t elements) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < elements) y[i] = from_f32<T>(to_f32(x[i]) * weights[columns(i).whole]);
}

// A warp has a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    row_dots(const T* a, const T* b, float* dots, std::int64_t columns, std::int64_t rows) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= rows) return;
  float sum = 0;
  for (std::int64_t i = row * columns + lane_id(); i < (row + 1) * columns; i += kWarp)
    sum += to_f32(a[i]) * to_f32(b[i]);
  sum = warp_sum(sum);
  if (lane_id() == 0) dots[row] = sum;
}

// ---- Host ----

Router router_of(const Signature& s, std::size_t logits, int choices) {
  const Shape &of = s.operands[logits].shape, &chosen = s.operands[static_cast<std::size_t>(choices)].shape;
  CHECK(of.rank() == chosen.rank() && (of.rank() == 3 || of.rank() == 2),
        describe(s) + ": [batch, seq, experts] and [batch, seq, k], or rows of these");
  CHECK(of[-1] <= kMostExperts, describe(s) + ": at most 1024 experts");
  const auto i = [](std::int64_t value) { return static_cast<int>(value); };
  Router r{.batch = of.rank() == 3 ? i(of[0]) : 1,
           .seq = i(of[-2]),
           .experts = i(of[-1]),
           .k = i(chosen[-1]),
           .groups = 1,
           .top_groups = 1,
           .sigmoid = text(s, "score") == "sigmoid",
           .normalize = true,
           .scale = 1,
           .aux = 0,
           .z = 0};
  expect_operand(s, choices, DType::i32, r.tokens() * r.k);
  return r;
}

}  // namespace

Prepared prepare_route(const Signature& s, const Context&) {
  const bool biased = flag(s, "biased");
  expect_operands(s, biased ? 4 : 3);
  Router r = router_of(s, 0, biased ? 3 : 2);
  expect_operand(s, biased ? 2 : 1, DType::f32, r.tokens() * r.k);
  if (biased) expect_operand(s, 1, DType::f32, r.experts);
  r.normalize = flag(s, "normalize");
  r.scale = static_cast<float>(real(s, "scale"));
  r.groups = static_cast<int>(integer(s, "groups"));
  r.top_groups = static_cast<int>(integer(s, "top_groups"));
  const Grid grid{
      .blocks = blocks_for(r.tokens(), kWarps), .threads = kThreads, .shared_bytes = kWarps * route_bytes(r.experts)};
  return with_type(expect_compute_dtype(s, 0), [&]<typename T>(T) -> Prepared {
    allow_shared(route<T>, grid.shared_bytes);
    return make_kernel([=](const Call& call) {
      launch(call, grid, route<T>, r, operand<T>(call, 0), biased ? operand<float>(call, 1) : nullptr,
             operand<float>(call, biased ? 2 : 1), operand<std::int32_t>(call, biased ? 3 : 2));
    });
  });
}

Prepared prepare_route_grad(const Signature& s, const Context&) {
  const bool losses = flag(s, "losses");
  expect_operands(s, losses ? 5 : 4);
  Router r = router_of(s, 1, 2);
  expect_operand(s, 0, DType::f32, r.tokens() * r.k);
  expect_shape(s, losses ? 4 : 3, s.operands[1].dtype, s.operands[1].shape);
  r.normalize = flag(s, "normalize");
  r.scale = static_cast<float>(real(s, "scale"));
  r.aux = static_cast<float>(real(s, "aux"));
  r.z = static_cast<float>(real(s, "z"));
  const Grid grid{.blocks = dim3(blocks_for(r.seq, kTokens), static_cast<unsigned>(r.batch)),
                  .threads = kThreads,
                  .shared_bytes = grad_bytes(r.experts)};
  return with_type(expect_compute_dtype(s, 1), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      launch(call, grid, route_grad<T>, r, operand<float>(call, 0), operand<T>(call, 1), operand<std::int32_t>(call, 2),
             losses ? operand<float>(call, 3) : nullptr, operand<T>(call, losses ? 4 : 3));
    });
  });
}

Prepared prepare_expert_capacity(const Signature& s, const Context&) {
  expect_operands(s, 2);
  const Shape& shape = s.operands[0].shape;
  CHECK(shape.rank() == 3 && integer(s, "experts") <= kMostExperts,
        describe(s) + ": [batch, seq, k], at most 1024 experts");
  expect_shape(s, 0, DType::i32, shape);
  expect_shape(s, 1, DType::i32, shape);
  const int seq = static_cast<int>(shape[1]), k = static_cast<int>(shape[2]),
            experts = static_cast<int>(integer(s, "experts"));
  const Grid grid{.blocks = static_cast<unsigned>(shape[0]),
                  .threads = kThreads,
                  .shared_bytes = static_cast<std::size_t>(experts) * 4};
  return make_kernel([=, capacity = integer(s, "capacity")](const Call& call) {
    launch(call, grid, expert_capacity, seq, k, experts, capacity, operand<std::int32_t>(call, 0),
           operand<std::int32_t>(call, 1));
  });
}

Prepared prepare_router_losses(const Signature& s, const Context&) {
  if (flag(s, "counts")) return count_choices(s);
  if (flag(s, "balance")) return move_bias(s);
  const bool capacity = flag(s, "capacity");
  expect_operands(s, capacity ? 4 : 3);
  Router r = router_of(s, 0, 1);
  r.aux = static_cast<float>(real(s, "aux"));
  r.z = static_cast<float>(real(s, "z"));
  if (capacity) expect_operand(s, 2, DType::i32, r.tokens() * r.k);
  expect_operand(s, capacity ? 3 : 2, DType::f64, 2);
  const Grid grid{.blocks = static_cast<unsigned>(r.batch), .threads = kThreads, .shared_bytes = grad_bytes(r.experts)};
  return with_type(expect_compute_dtype(s, 0), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      auto* const partial = static_cast<double*>(call.workspace);
      launch(call, grid, sample_losses<T>, r, operand<T>(call, 0), operand<std::int32_t>(call, 1),
             capacity ? operand<std::int32_t>(call, 2) : nullptr, partial);
      launch(call, {.blocks = 1, .threads = 2}, add_losses, r.batch, partial, operand<double>(call, capacity ? 3 : 2));
    });
  });
}

Prepared prepare_weigh(const Signature& s, const Context&) {
  expect_operands(s, 3);
  expect_alike(s, {0, 2});
  const std::int64_t elements = s.operands[0].elements(), columns = s.operands[0].shape[-1];
  expect_operand(s, 1, DType::f32, elements / columns);
  const Divisor of_row(columns);
  const Grid grid{.blocks = blocks_for(elements, kThreads), .threads = kThreads};
  return with_type(expect_compute_dtype(s, 0), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      launch(call, grid, weigh<T>, operand<T>(call, 0), operand<float>(call, 1), operand<T>(call, 2), of_row, elements);
    });
  });
}

Prepared prepare_row_dots(const Signature& s, const Context&) {
  expect_operands(s, 3);
  expect_alike(s, {0, 1});
  const std::int64_t columns = s.operands[0].shape[-1], rows = s.operands[0].elements() / columns;
  expect_operand(s, 2, DType::f32, rows);
  const Grid grid{.blocks = blocks_for(rows, kWarps), .threads = kThreads};
  return with_type(expect_compute_dtype(s, 0), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      launch(call, grid, row_dots<T>, operand<T>(call, 0), operand<T>(call, 1), operand<float>(call, 2), columns, rows);
    });
  });
}

}  // namespace trainer::kernels::cuda
