// Losses of gathered statistics, counts, and the mean squared error. mse and its gradient are bound by memory, with two
// vectors of each operand on their way a thread: 2 reads, and of the gradient a write. The others read a few bytes a
// row.
#include <algorithm>

#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/loss/loss_sums.cuh"
#include "kernels/cuda/runtime/fault.cuh"
#include "kernels/loss.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kEach = 2, kN = 4, kStats = 5;  // vectors of a thread, of kN elements

/// Statistics [parts, rows, 5] of all ranks.
struct Gathered {
  const float* stats;
  const std::int32_t* targets;
  std::int64_t parts, rows;
  int classes, ignore_index;
  float smoothing;
  Fault* fault;
};

// ---- Device ----

/// Whether the row's target counts; reports one that is no class, whose row becomes NaN.
struct Target {
  bool counts, wrong;
};
__device__ __forceinline__ Target target_of(const Gathered& a, std::int64_t row) {
  const int id = a.targets[row];
  const bool counts = id != a.ignore_index, wrong = counts && (id < 0 || id >= a.classes);
  if (wrong) report(a.fault, Fault::target, id, row, a.classes);
  return {counts, wrong};
}

__global__ void __launch_bounds__(kThreads) gathered_loss(const Gathered a, double* losses, float* lse) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= a.rows) return;
  const auto part = [&](std::int64_t p) { return a.stats + (p * a.rows + row) * kStats; };
  float most = -INFINITY;
  for (std::int64_t p = 0; p < a.parts; ++p) most = fmaxf(most, part(p)[0]);
  float total = 0, at_target = 0, plain = 0;
  for (std::int64_t p = 0; p < a.parts; ++p) {
    const float* const s = part(p);
    total += s[1] * expf(s[0] - most);
    at_target += s[2];  // of one part alone it is not 0
    plain += s[3];
  }
  const Target target = target_of(a, row);
  const double whole = static_cast<double>(most) + static_cast<double>(logf(total)), smoothing = a.smoothing;
  lse[row] = static_cast<float>(whole);
  const double loss = (1 - smoothing) * (whole - at_target) +
                      (smoothing != 0 ? smoothing * (whole - static_cast<double>(plain) / a.classes) : 0.0);
  losses[row] = target.wrong ? static_cast<double>(NAN) : target.counts ? loss : 0.0;
}

__global__ void __launch_bounds__(kThreads) gathered_correct(const Gathered a, double* right) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= a.rows) return;
  const Target target = target_of(a, row);
  float most = 0, best = -1;
  bool nan = false;
  for (std::int64_t p = 0; p < a.parts; ++p) {
    const float* const s = a.stats + (p * a.rows + row) * kStats;
    nan = nan || s[4] != s[4];
    if (s[4] >= 0 && (best < 0 || s[0] > most)) most = s[0], best = s[4];
  }
  const bool is_right = target.counts && !nan && best >= 0 && best == static_cast<float>(a.targets[row]);
  right[row] = target.wrong ? static_cast<double>(NAN) : is_right ? 1.0 : 0.0;
}

__global__ void __launch_bounds__(kSumLossThreads)
    count_targets(const std::int32_t* targets, double* count, std::int64_t rows, int ignore_index, bool accumulate) {
  __shared__ double shared[kSumLossThreads / kWarp];
  int mine = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < rows; i += kSumLossThreads) mine += targets[i] != ignore_index;
  const double all = block_sum<kSumLossThreads>(static_cast<double>(mine), shared);
  if (threadIdx.x == 0) *count = accumulate ? *count + all : all;
}

__global__ void put_count(double* count, double value, bool accumulate) {
  *count = accumulate ? *count + value : value;
}

/// Calls fn(p, t, i) with p and t of kN elements, or of one where no whole vector is left, i the index of the vector or
/// element.
template <typename P, typename T, typename Vectors, typename Singles>
__device__ __forceinline__ void each_pair(const P* p, const T* t, std::int64_t count, Vectors&& vectors,
                                          Singles&& singles) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads * kEach;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads * kEach + threadIdx.x; first * kN < count;
       first += step) {
    Packed<P, kN> left[kEach];
    Packed<T, kN> right[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const std::int64_t at = first + k * kThreads;
      if ((at + 1) * kN > count) continue;
      left[k] = load_packed<kN>(p, at);
      right[k] = load_packed<kN>(t, at);
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const std::int64_t at = first + k * kThreads;
      if ((at + 1) * kN <= count) {
        float v[kN], w[kN];
        widen(left[k], v);
        widen(right[k], w);
        vectors(v, w, at);
      } else {
        for (std::int64_t i = at * kN; i < count; ++i) singles(to_f32(p[i]), to_f32(t[i]), i);
      }
    }
  }
}

template <typename P, typename T>
__global__ void __launch_bounds__(kThreads) squared_error(const P* p, const T* t, double* sums, std::int64_t count) {
  __shared__ double shared[kThreads / kWarp];
  double sum = 0;
  const auto add = [&](float a, float b, std::int64_t) {
    const double off = static_cast<double>(a - b);
    sum += off * off;
  };
  each_pair(
      p, t, count,
      [&](const float(&v)[kN], const float(&w)[kN], std::int64_t) {
#pragma unroll
        for (int i = 0; i < kN; ++i) add(v[i], w[i], i);
      },
      add);
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// dp may be p.
template <typename P, typename T>
__global__ void __launch_bounds__(kThreads)
    squared_error_grad(const P* p, const T* t, const float* seed, P* dp, std::int64_t count) {
  const float scale = *seed;
  each_pair(
      p, t, count,
      [&](float(&v)[kN], const float(&w)[kN], std::int64_t at) {
#pragma unroll
        for (int i = 0; i < kN; ++i) v[i] = 2 * (v[i] - w[i]) * scale;
        store_packed(dp, at, narrow<P>(v));
      },
      [&](float a, float b, std::int64_t i) { dp[i] = from_f32<P>(2 * (a - b) * scale); });
}

// ---- Host ----

/// Of signatures with stats at operand `index` and targets at the next; `at` fills in the call's operands.
Gathered gathered_of(const Signature& signature, int index, const Context& context) {
  const TensorDesc& stats = signature.operands[static_cast<std::size_t>(index)];
  CHECK(stats.shape.rank() == 3 && stats.shape[2] == kStats, describe(signature) + ": stats are [parts, rows, 5]");
  Gathered all{};
  all.parts = stats.shape[0];
  all.rows = stats.shape[1];
  all.classes = static_cast<int>(integer(signature, "classes"));
  all.ignore_index = static_cast<int>(integer(signature, "ignore_index"));
  if (record(signature.op).attribute("label_smoothing") != nullptr)
    all.smoothing = static_cast<float>(real(signature, "label_smoothing"));
  all.fault = context.fault;
  expect_operand(signature, index, DType::f32, stats.elements());
  expect_operand(signature, index + 1, DType::i32, all.rows);
  return all;
}

Gathered at(Gathered all, const Call& call, int index) {
  all.stats = operand<float>(call, index);
  all.targets = operand<std::int32_t>(call, index + 1);
  return all;
}

/// Calls fn(P{}, T{}) with the types of prediction and target.
template <typename Fn>
Prepared with_pair(const Signature& signature, Fn&& fn) {
  expect_operand(signature, 1, signature.operands[1].dtype, signature.operands[0].elements());
  return with_type(expect_compute_dtype(signature, 0), [&]<typename P>(P) -> Prepared {
    if (signature.operands[1].dtype == DType::f32) return fn(P{}, float{});
    if (signature.operands[1].dtype != signature.operands[0].dtype)
      refuse_dtypes(signature, "a target in f32 or the prediction's dtype");
    return fn(P{}, P{});
  });
}

unsigned blocks_of(std::int64_t count, std::int64_t most) {
  return static_cast<unsigned>(std::min<std::int64_t>(most, blocks_for(count, kThreads * kEach * kN)));
}

}  // namespace

Prepared prepare_cross_entropy_gathered(const Signature& signature, const Context& context) {
  expect_operands(signature, 5);
  const Gathered all = gathered_of(signature, 1, context);
  expect_operand(signature, 3, DType::f64, 1);
  expect_operand(signature, 4, DType::f32, all.rows);
  const bool accumulate = accumulates(signature);
  const Grid grid{.blocks = blocks_for(all.rows, kThreads), .threads = kThreads};
  return make_kernel([=](const Call& call) {
    double* const losses = static_cast<double*>(call.workspace);
    launch(call, grid, gathered_loss, at(all, call, 1), losses, operand<float>(call, 4));
    launch_sum_values(call, losses, operand<double>(call, 3), all.rows, accumulate);
  });
}

Prepared prepare_correct_count_gathered(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const Gathered all = gathered_of(signature, 0, context);
  expect_operand(signature, 2, DType::f64, 1);
  const bool accumulate = accumulates(signature);
  const Grid grid{.blocks = blocks_for(all.rows, kThreads), .threads = kThreads};
  return make_kernel([=](const Call& call) {
    double* const right = static_cast<double*>(call.workspace);
    launch(call, grid, gathered_correct, at(all, call, 0), right);
    launch_sum_values(call, right, operand<double>(call, 2), all.rows, accumulate);
  });
}

Prepared prepare_cross_entropy_count(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  const std::int64_t rows = signature.operands[0].elements();
  expect_operand(signature, 0, DType::i32, rows);
  expect_operand(signature, 1, DType::f64, 1);
  const int ignore_index = static_cast<int>(integer(signature, "ignore_index"));
  const bool accumulate = accumulates(signature);
  return make_kernel([=](const Call& call) {
    launch(call, Grid{.threads = kSumLossThreads}, count_targets, operand<std::int32_t>(call, 0),
           operand<double>(call, 1), rows, ignore_index, accumulate);
  });
}

Prepared prepare_mse(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  expect_operand(signature, 2, DType::f64, 1);
  const std::int64_t count = signature.operands[0].elements();
  const bool accumulate = accumulates(signature);
  const unsigned blocks = blocks_of(count, 2 * context.units);
  return with_pair(signature, [&]<typename P, typename T>(P, T) -> Prepared {
    return make_kernel([=](const Call& call) {
      double* const sums = static_cast<double*>(call.workspace);
      launch(call, Grid{.blocks = blocks, .threads = kThreads}, squared_error<P, T>, operand<P>(call, 0),
             operand<T>(call, 1), sums, count);
      launch_sum_values(call, sums, operand<double>(call, 2), blocks, accumulate);
    });
  });
}

Prepared prepare_mse_grad(const Signature& signature, const Context&) {
  expect_operands(signature, 4);
  expect_operand(signature, 2, DType::f32, 1);
  expect_alike(signature, {0, 3});
  const std::int64_t count = signature.operands[0].elements();
  const Grid grid{.blocks = blocks_of(count, std::int64_t{1} << 31), .threads = kThreads};
  return with_pair(signature, [&]<typename P, typename T>(P, T) -> Prepared {
    return make_kernel([=](const Call& call) {
      launch(call, grid, squared_error_grad<P, T>, operand<P>(call, 0), operand<T>(call, 1), operand<float>(call, 2),
             operand<P>(call, 3), count);
    });
  });
}

Prepared prepare_mse_count(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  expect_operand(signature, 1, DType::f64, 1);
  const double count = static_cast<double>(signature.operands[0].elements());
  const bool accumulate = accumulates(signature);
  return make_kernel(
      [=](const Call& call) { launch(call, Grid{}, put_count, operand<double>(call, 1), count, accumulate); });
}

}  // namespace trainer::kernels::cuda
