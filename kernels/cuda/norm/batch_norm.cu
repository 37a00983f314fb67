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

/// z = (x − centre) · scale + shift of a channel.
struct Scales {
  float centre, scale, shift;

  __device__ __forceinline__ float of(float x) const { return fmaf(x - centre, scale, shift); }
};

template <typename T>
__device__ __forceinline__ Scales scales_of(Moments moments, T weight, T bias) {
  return {static_cast<float>(moments.mean), static_cast<float>(static_cast<double>(to_f32(weight)) * moments.rstd),
          to_f32(bias)};
}

/// max(z, 0), and the gradient of z where y = max(z, 0); NaN passes.
__device__ __forceinline__ float relu(float z) { return z < 0 ? 0.0F : z; }
__device__ __forceinline__ float relu_grad(float dy, float z) { return z <= 0 ? 0.0F : dy; }

/// What is summed of x: x and x², or dy and dy (x − mean), where with relu dy counts as 0 unless z is above 0.
enum class Summed { values, gradient, relu_gradient };

/// Where the sums of a gradient find the statistics of a batch, and with relu weight and bias.
template <typename T>
struct Batch {
  const double* sums;
  double count, eps;
  const T *weight, *bias;
};

/// partial[part][2][channel] = the two sums over part blockIdx.y of channel blockIdx.x, N elements at a time.
template <typename T, int N, Summed What>
__global__ void __launch_bounds__(kThreads, 5)
    sum_channels(const T* x, const T* dy, Batch<T> batch, double* partial, Channels s, Runs runs) {
  __shared__ double shared[2][kThreads / kWarp];
  const int channel = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.y);
  const std::int64_t per_run = runs.of_run.by();
  const std::int64_t all = static_cast<std::int64_t>(s.samples) * per_run;
  const std::int64_t begin = all * blockIdx.y / parts, end = all * (blockIdx.y + 1) / parts;
  const double mean = What == Summed::values ? 0 : batch.sums[channel] / batch.count;
  Scales z;
  if constexpr (What == Summed::relu_gradient)
    z = scales_of(moments_of(batch.sums, channel, s.channels, batch.count, batch.eps), batch.weight[channel],
                  batch.bias[channel]);
  double first = 0, second = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const auto [sample, place] = runs.of_run(i);
    const std::int64_t at = (sample * s.channels + channel) * per_run + place;
    const Vec<T, N> values = load<N>(x, at);
    if constexpr (What != Summed::values) {
      const Vec<T, N> slopes = load<N>(dy, at);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float value = to_f32(values[k]);
        float slope = to_f32(slopes[k]);
        if constexpr (What == Summed::relu_gradient) slope = relu_grad(slope, z.of(value));
        first += static_cast<double>(slope);
        second += static_cast<double>(slope) * (static_cast<double>(value) - mean);
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

/// Scales of z as coefficients f32 [3][channels], in the order centre, scale, shift: by the running statistics, or by
/// those of a batch where `sums` is not null.
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
  const Scales z = scales_of(moments, weight[channel], bias[channel]);
  to[channel] = z.centre;
  to[channels + channel] = z.scale;
  to[2 * channels + channel] = z.shift;
}

/// dx = dy · scale + (x − centre) · slope + term: coefficients f32 [5][channels], in the order centre, scale, shift,
/// slope, term. The shift is 0 where `bias` is null.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    find_slopes(const double* sums, const double* grad_sums, const T* weight, const T* bias, int channels, double count,
                double eps, float* to) {
  const int channel = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (channel >= channels) return;
  const Moments moments = moments_of(sums, channel, channels, count, eps);
  const double factor = static_cast<double>(to_f32(weight[channel])) * moments.rstd;
  to[channel] = static_cast<float>(moments.mean);
  to[channels + channel] = static_cast<float>(factor);
  to[2 * channels + channel] = bias == nullptr ? 0.0F : to_f32(bias[channel]);
  to[3 * channels + channel] = static_cast<float>(-factor * moments.rstd * grad_sums[channels + channel] / count);
  to[4 * channels + channel] = static_cast<float>(-factor * grad_sums[channel] / count);
}

/// The vectors of a tensor: each thread has one, whose coefficients are its channel's.
struct Elements {
  Channels s;
  Runs runs;
  std::int64_t vectors;

  __device__ __forceinline__ int channel_of(std::int64_t i) const {
    return static_cast<int>(runs.channels(runs.of_run(i).whole).rest);
  }
};

__device__ __forceinline__ Scales scales_at(const float* coefficients, int channel, int channels) {
  return {coefficients[channel], coefficients[channels + channel], coefficients[2 * channels + channel]};
}

/// y = z + residual, with relu max(y, 0). A null residual is not added.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    scale_elements(const T* x, const T* residual, const float* coefficients, bool with_relu, T* to, Elements of) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= of.vectors) return;
  const Scales z = scales_at(coefficients, of.channel_of(i), of.s.channels);
  const Vec<T, N> values = load<N>(x, i);
  float y[N];
#pragma unroll
  for (int k = 0; k < N; ++k) y[k] = z.of(to_f32(values[k]));
  if (residual != nullptr) {
    const Vec<T, N> others = load<N>(residual, i);
#pragma unroll
    for (int k = 0; k < N; ++k) y[k] += to_f32(others[k]);
  }
  Vec<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) result[k] = from_f32<T>(with_relu ? relu(y[k]) : y[k]);
  store<N>(to, i, result);
}

/// dx of dy, which with relu counts as 0 unless z is above 0.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    combine_elements(const T* x, const T* dy, const float* coefficients, bool with_relu, T* to, Elements of) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= of.vectors) return;
  const int channel = of.channel_of(i);
  const Scales z = scales_at(coefficients, channel, of.s.channels);
  const float slope = coefficients[3 * of.s.channels + channel], term = coefficients[4 * of.s.channels + channel];
  const Vec<T, N> values = load<N>(x, i), slopes = load<N>(dy, i);
  Vec<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float value = to_f32(values[k]);
    float gradient = to_f32(slopes[k]);
    if (with_relu) gradient = relu_grad(gradient, z.of(value));
    result[k] = from_f32<T>(fmaf(gradient, z.scale, fmaf(value - z.centre, slope, term)));
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

template <int N>
Elements elements_of(const Channels& s) {
  return {s, Runs(s, N), static_cast<std::int64_t>(s.samples) * s.channels * (s.places / N)};
}

Grid per_element(const Elements& of) { return {.blocks = blocks_for(of.vectors, kThreads), .threads = kThreads}; }

/// A first launch makes the coefficients in the workspace, the second y of them. The residual is operand `next` if
/// there is one, and y the operand after.
template <typename T, typename Find>
Prepared scaled(const Signature& signature, const Channels& s, int next, Find find) {
  const bool residual = flag(signature, "residual"), with_relu = flag(signature, "relu");
  return by_vectors<T>(s, [&]<int N>(std::integral_constant<int, N>) -> Prepared {
    const Elements of = elements_of<N>(s);
    return make_kernel([=](const Call& call) {
      auto* coefficients = static_cast<float*>(call.workspace);
      find(call, coefficients);
      launch(call, per_element(of), scale_elements<T, N>, operand<T>(call, 0),
             residual ? operand<T>(call, next) : nullptr, coefficients, with_relu,
             operand<T>(call, residual ? next + 1 : next), of);
    });
  });
}

}  // namespace

Prepared prepare_batch_norm(const Signature& signature, const Context&) {
  const Channels s = channels_of(signature, 0);
  const double eps = real(signature, "eps");
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return scaled<T>(signature, s, 5, [=](const Call& call, float* to) {
      launch(call, per_channel(s), find_scales<T>, nullptr, operand<float>(call, 3), operand<float>(call, 4),
             operand<T>(call, 1), operand<T>(call, 2), s.channels, 1.0, eps, to);
    });
  });
}

Prepared prepare_batch_norm_apply(const Signature& signature, const Context&) {
  const Channels s = channels_of(signature, 0);
  const Count of = count_of(signature);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return scaled<T>(signature, s, 4, [=](const Call& call, float* to) {
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
        launch(call, per_part(s, parts), sum_channels<T, N, Summed::values>, operand<T>(call, 0), nullptr, Batch<T>{},
               partial, s, runs);
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
  const bool with_relu = flag(signature, "relu");
  const int grad_sums = with_relu ? 5 : 3, dweight = grad_sums + 1, dbias = weight ? dweight + 1 : dweight;
  const int parts = static_cast<int>(batch_norm_parts(s.channels, s.samples, context.units));
  const auto dtype_of = [&](int i) { return signature.operands[static_cast<std::size_t>(i)].dtype; };
  const DType reduce = weight || bias ? dtype_of(dweight) : DType::f32;
  CHECK(!weight || !bias || dtype_of(dbias) == reduce, describe(signature) + ": gradients of two dtypes");
  const auto of_types = [&]<typename T, typename R>(T, R) -> Prepared {
    return by_vectors<T>(s, [&]<int N>(std::integral_constant<int, N>) -> Prepared {
      const Runs runs(s, N);
      const auto sum = with_relu ? sum_channels<T, N, Summed::relu_gradient> : sum_channels<T, N, Summed::gradient>;
      return make_kernel([=](const Call& call) {
        auto* partial = static_cast<double*>(call.workspace);
        const Batch<T> batch{.sums = operand<double>(call, 2),
                             .count = of.count,
                             .eps = of.eps,
                             .weight = with_relu ? operand<T>(call, 3) : nullptr,
                             .bias = with_relu ? operand<T>(call, 4) : nullptr};
        launch(call, per_part(s, parts), sum, operand<T>(call, 1), operand<T>(call, 0), batch, partial, s, runs);
        launch(call, per_channel(s), join_grad_sums<R>, partial, parts, s.channels, batch.sums, of.count, of.eps,
               operand<double>(call, grad_sums), weight ? operand<R>(call, dweight) : nullptr,
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
  const bool with_relu = flag(signature, "relu");
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return by_vectors<T>(s, [&]<int N>(std::integral_constant<int, N>) -> Prepared {
      const Elements all = elements_of<N>(s);
      return make_kernel([=](const Call& call) {
        auto* coefficients = static_cast<float*>(call.workspace);
        launch(call, per_channel(s), find_slopes<T>, operand<double>(call, 3), operand<double>(call, 4),
               operand<T>(call, 2), with_relu ? operand<T>(call, 5) : nullptr, s.channels, of.count, of.eps,
               coefficients);
        launch(call, per_element(all), combine_elements<T, N>, operand<T>(call, 1), operand<T>(call, 0), coefficients,
               with_relu, operand<T>(call, with_relu ? 6 : 5), all);
      });
    });
  });
}

}  // namespace trainer::kernels::cuda
