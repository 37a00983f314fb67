// batch_norm and what it is in training. Sums: a block has a part of a channel and writes it in f64, a second pass
// joins the parts of each channel in order. Elements: a first pass makes the coefficients of each channel, in f64, a
// second one goes over memory once. Both are bound by memory: 16 bytes at a time where a channel's places are whole
// vectors.
#include "kernels/batch_norm.h"

#include <algorithm>

#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/norm/batch_norm.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// ---- Device ----

/// What the sums of a channel say.
struct Moments {
  double mean, rstd;
};

__device__ __forceinline__ double variance_of(const double* sums, int channel, int channels, double count) {
  const double mean = sums[channel] / count, variance = sums[channels + channel] / count - mean * mean;
  return variance < 0 ? 0 : variance;
}

__device__ __forceinline__ Moments moments_of(const double* sums, int channel, int channels, double count, double eps) {
  return {sums[channel] / count, 1 / sqrt(variance_of(sums, channel, channels, count) + eps)};
}

/// A channel's elements in runs of places.
struct Channels {
  int samples, channels, places;
};
/// Its vectors, as kernels take them apart.
struct Runs {
  Divisor of_run, channels;
  Runs(const Channels& s, int n) : of_run(s.places / n), channels(s.channels) {}
};

/// partial[part][2][channel] = Σ x and Σ x², or Σ dy and Σ dy (x − mean), over part blockIdx.y of channel blockIdx.x, N
/// elements at a time.
template <typename T, int N, bool Gradient>
__global__ void __launch_bounds__(kThreads, 5)
    sum_channels(const T* x, const T* dy, const double* sums, double count, double* partial, Channels s, Runs runs) {
  __shared__ double shared[2][kThreads / kWarp];
  const int channel = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.y);
  const std::int64_t per_run = runs.of_run.by();
  const std::int64_t all = static_cast<std::int64_t>(s.samples) * per_run;
  const std::int64_t begin = all * blockIdx.y / parts, end = all * (blockIdx.y + 1) / parts;
  const double mean = Gradient ? sums[channel] / count : 0;
  double first = 0, second = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const auto [sample, place] = runs.of_run(i);
    const std::int64_t at = (sample * s.channels + channel) * per_run + place;
    const Vec<T, N> values = load<N>(x, at);
    if constexpr (Gradient) {
      const Vec<T, N> slopes = load<N>(dy, at);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const double slope = to_f32(slopes[k]);
        first += slope;
        second += slope * (static_cast<double>(to_f32(values[k])) - mean);
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const double value = to_f32(values[k]);
        first += value;
        second += value * value;
      }
    }
  }
  first = block_sum<kThreads>(first, shared[0]);
  second = block_sum<kThreads>(second, shared[1]);
  if (threadIdx.x != 0) return;
  double* const to = partial + static_cast<std::int64_t>(blockIdx.y) * 2 * s.channels + channel;
  to[0] = first;
  to[s.channels] = second;
}

/// sums[0][channel], sums[1][channel] = the parts' in order.
__device__ __forceinline__ void join_parts(const double* partial, int parts, int channel, int channels, double* sums) {
  double first = 0, second = 0;
  for (int part = 0; part < parts; ++part, partial += 2 * channels) {
    first += partial[channel];
    second += partial[channels + channel];
  }
  sums[channel] = first;
  sums[channels + channel] = second;
}

__global__ void __launch_bounds__(kThreads) join_sums(const double* partial, int parts, int channels, double* sums) {
  const int channel = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (channel < channels) join_parts(partial, parts, channel, channels, sums);
}

/// The same of a gradient, with those of weight and bias where they are not null.
template <typename R>
__global__ void __launch_bounds__(kThreads)
    join_grad_sums(const double* partial, int parts, int channels, const double* sums, double count, double eps,
                   double* grad_sums, R* dweight, R* dbias, bool accumulate) {
  const int channel = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (channel >= channels) return;
  join_parts(partial, parts, channel, channels, grad_sums);
  const double product = grad_sums[channels + channel] * moments_of(sums, channel, channels, count, eps).rstd;
  grad_sums[channels + channel] = product;
  const auto put = [&](R* to, double value) {
    if (to == nullptr) return;
    const double before = accumulate ? static_cast<double>(to_f32(to[channel])) : 0.0;
    to[channel] = from_f32<R>(static_cast<float>(before + value));
  };
  put(dweight, product);
  put(dbias, grad_sums[channel]);
}

__global__ void __launch_bounds__(kThreads) update_running(const double* sums, float* running_mean, float* running_var,
                                                           int channels, double momentum, double count) {
  const int channel = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (channel >= channels) return;
  const double mean = sums[channel] / count,
               variance = variance_of(sums, channel, channels, count) * count / (count - 1);
  const double before = running_mean[channel], before_var = running_var[channel];
  running_mean[channel] = static_cast<float>(before + momentum * (mean - before));
  running_var[channel] = static_cast<float>(before_var + momentum * (variance - before_var));
}

/// y = (x − centre) · scale + shift: coefficients f32 [3][channels], by the running statistics, or by those of a batch
/// where `sums` is not null.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_scales(const double* sums, const float* running_mean, const float* running_var, const T* weight, const T* bias,
                int channels, double count, double eps, float* to) {
  const int channel = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (channel >= channels) return;
  Moments moments;
  if (sums != nullptr)
    moments = moments_of(sums, channel, channels, count, eps);
  else
    moments = {running_mean[channel], 1 / sqrt(static_cast<double>(running_var[channel]) + eps)};
  to[channel] = static_cast<float>(moments.mean);
  to[channels + channel] = static_cast<float>(static_cast<double>(to_f32(weight[channel])) * moments.rstd);
  to[2 * channels + channel] = to_f32(bias[channel]);
}

/// dx = dy · scale + (x − centre) · slope + shift: coefficients f32 [4][channels], in the order centre, scale, shift,
/// slope.
template <typename T>
__global__ void __launch_bounds__(kThreads) find_slopes(const double* sums, const double* grad_sums, const T* weight,
                                                        int channels, double count, double eps, float* to) {
  const int channel = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (channel >= channels) return;
  const Moments moments = moments_of(sums, channel, channels, count, eps);
  const double factor = static_cast<double>(to_f32(weight[channel])) * moments.rstd;
  to[channel] = static_cast<float>(moments.mean);
  to[channels + channel] = static_cast<float>(factor);
  to[2 * channels + channel] = static_cast<float>(-factor * grad_sums[channel] / count);
  to[3 * channels + channel] = static_cast<float>(-factor * moments.rstd * grad_sums[channels + channel] / count);
}

/// The elements, N neighbours of a channel at a time; `dy` null: y of x.
template <typename T, int N, bool Gradient>
__global__ void __launch_bounds__(kThreads) scale_elements(const T* x, const T* dy, const float* coefficients, T* to,
                                                           Channels s, Runs runs, std::int64_t vectors) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const int channel = static_cast<int>(runs.channels(runs.of_run(i).whole).rest);
  const float centre = coefficients[channel], scale = coefficients[s.channels + channel],
              shift = coefficients[2 * s.channels + channel];
  const Vec<T, N> values = load<N>(x, i);
  Vec<T, N> result;
  if constexpr (Gradient) {
    const float slope = coefficients[3 * s.channels + channel];
    const Vec<T, N> slopes = load<N>(dy, i);
#pragma unroll
    for (int k = 0; k < N; ++k)
      result[k] = from_f32<T>(fmaf(to_f32(slopes[k]), scale, fmaf(to_f32(values[k]) - centre, slope, shift)));
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) result[k] = from_f32<T>(fmaf(to_f32(values[k]) - centre, scale, shift));
  }
  store<N>(to, i, result);
}

// ---- Host ----

Channels channels_of(const Signature& signature, int x) {
  const BatchNormSizes sizes = batch_norm_sizes(signature, x);
  const auto fits = [](std::int64_t size) { return size < std::int64_t{1} << 31; };
  CHECK(fits(sizes.samples) && fits(sizes.channels) && fits(sizes.places), describe(signature) + ": sizes are 32 bits");
  return {static_cast<int>(sizes.samples), static_cast<int>(sizes.channels), static_cast<int>(sizes.places)};
}

/// Calls fn(std::integral_constant<int, N>) with how many elements are taken at a time.
template <typename T, typename Fn>
Prepared by_vectors(const Channels& s, Fn&& fn) {
  if (in_vectors<T>(s.places)) return fn(std::integral_constant<int, kVector<T>>{});
  return fn(std::integral_constant<int, 1>{});
}

Grid per_channel(const Channels& s) { return {.blocks = blocks_for(s.channels, kThreads), .threads = kThreads}; }

Grid per_part(const Channels& s, int parts) {
  return {.blocks = dim3(static_cast<unsigned>(s.channels), static_cast<unsigned>(parts)), .threads = kThreads};
}

struct Count {
  double eps, count;
};
Count count_of(const Signature& signature) {
  return {real(signature, "eps"), static_cast<double>(integer(signature, "count"))};
}

/// A first launch makes the coefficients in the workspace, the second y of them.
template <typename T, typename Find>
Prepared scaled(const Channels& s, int y, Find find) {
  return by_vectors<T>(s, [&]<int N>(std::integral_constant<int, N>) -> Prepared {
    const std::int64_t vectors = static_cast<std::int64_t>(s.samples) * s.channels * (s.places / N);
    const Runs runs(s, N);
    return make_kernel([=](const Call& call) {
      auto* coefficients = static_cast<float*>(call.workspace);
      find(call, coefficients);
      launch(call, {.blocks = blocks_for(vectors, kThreads), .threads = kThreads}, scale_elements<T, N, false>,
             operand<T>(call, 0), nullptr, coefficients, operand<T>(call, y), s, runs, vectors);
    });
  });
}

}  // namespace

Prepared prepare_batch_norm(const Signature& signature, const Context&) {
  const Channels s = channels_of(signature, 0);
  const double eps = real(signature, "eps");
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return scaled<T>(s, 5, [=](const Call& call, float* to) {
      launch(call, per_channel(s), find_scales<T>, nullptr, operand<float>(call, 3), operand<float>(call, 4),
             operand<T>(call, 1), operand<T>(call, 2), s.channels, 1.0, eps, to);
    });
  });
}

Prepared prepare_batch_norm_apply(const Signature& signature, const Context&) {
  const Channels s = channels_of(signature, 0);
  const Count of = count_of(signature);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return scaled<T>(s, 4, [=](const Call& call, float* to) {
      launch(call, per_channel(s), find_scales<T>, operand<double>(call, 1), nullptr, nullptr, operand<T>(call, 2),
             operand<T>(call, 3), s.channels, of.count, of.eps, to);
    });
  });
}

Prepared prepare_batch_norm_sums(const Signature& signature, const Context& context) {
  const Channels s = channels_of(signature, 0);
  const int parts = static_cast<int>(batch_norm_parts(s.channels, s.samples, context.units));
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return by_vectors<T>(s, [&]<int N>(std::integral_constant<int, N>) -> Prepared {
      const Runs runs(s, N);
      return make_kernel([=](const Call& call) {
        auto* partial = static_cast<double*>(call.workspace);
        launch(call, per_part(s, parts), sum_channels<T, N, false>, operand<T>(call, 0), nullptr, nullptr, 1.0, partial,
               s, runs);
        launch(call, per_channel(s), join_sums, partial, parts, s.channels, operand<double>(call, 1));
      });
    });
  });
}

Prepared prepare_batch_norm_update(const Signature& signature, const Context&) {
  expect_operands(signature, 3);
  const std::int64_t channels = signature.operands[1].elements();
  expect_operand(signature, 0, DType::f64, 2 * channels);
  for (int i : {1, 2}) expect_operand(signature, i, DType::f32, channels);
  const Channels s{1, static_cast<int>(channels), 1};
  const double momentum = real(signature, "momentum"), count = static_cast<double>(integer(signature, "count"));
  return make_kernel([=](const Call& call) {
    launch(call, per_channel(s), update_running, operand<double>(call, 0), operand<float>(call, 1),
           operand<float>(call, 2), s.channels, momentum, count);
  });
}

Prepared prepare_batch_norm_grad_sums(const Signature& signature, const Context& context) {
  const Channels s = channels_of(signature, 1);
  const Count of = count_of(signature);
  const bool weight = flag(signature, "weight"), bias = flag(signature, "bias"), accumulate = accumulates(signature);
  const int parts = static_cast<int>(batch_norm_parts(s.channels, s.samples, context.units)), dbias = weight ? 5 : 4;
  const DType reduce = weight || bias ? signature.operands[4].dtype : DType::f32;
  CHECK(!weight || !bias || signature.operands[5].dtype == reduce, describe(signature) + ": gradients of two dtypes");
  const auto of_types = [&]<typename T, typename R>(T, R) -> Prepared {
    return by_vectors<T>(s, [&]<int N>(std::integral_constant<int, N>) -> Prepared {
      const Runs runs(s, N);
      return make_kernel([=](const Call& call) {
        auto* partial = static_cast<double*>(call.workspace);
        const double* sums = operand<double>(call, 2);
        launch(call, per_part(s, parts), sum_channels<T, N, true>, operand<T>(call, 1), operand<T>(call, 0), sums,
               of.count, partial, s, runs);
        launch(call, per_channel(s), join_grad_sums<R>, partial, parts, s.channels, sums, of.count, of.eps,
               operand<double>(call, 3), weight ? operand<R>(call, 4) : nullptr,
               bias ? operand<R>(call, dbias) : nullptr, accumulate);
      });
    });
  };
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T value) -> Prepared {
    return with_reduce_type(reduce, [&]<typename R>(R other) -> Prepared { return of_types(value, other); });
  });
}

Prepared prepare_batch_norm_grad(const Signature& signature, const Context&) {
  const Channels s = channels_of(signature, 1);
  const Count of = count_of(signature);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return by_vectors<T>(s, [&]<int N>(std::integral_constant<int, N>) -> Prepared {
      const std::int64_t vectors = static_cast<std::int64_t>(s.samples) * s.channels * (s.places / N);
      const Runs runs(s, N);
      return make_kernel([=](const Call& call) {
        auto* coefficients = static_cast<float*>(call.workspace);
        launch(call, per_channel(s), find_slopes<T>, operand<double>(call, 3), operand<double>(call, 4),
               operand<T>(call, 2), s.channels, of.count, of.eps, coefficients);
        launch(call, {.blocks = blocks_for(vectors, kThreads), .threads = kThreads}, scale_elements<T, N, true>,
               operand<T>(call, 1), operand<T>(call, 0), coefficients, operand<T>(call, 5), s, runs, vectors);
      });
    });
  });
}

}  // namespace trainer::kernels::cuda
