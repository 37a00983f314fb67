// batch_norm and what it is in training, cut over channels: a channel is one thread's, so that its sums do not depend
// on how many there are. Coefficients of a channel are computed in f64, then elements in f32.
#include "kernels/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "engine/core/op_record.h"
#include "kernels/bf16.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/norm/batch_norm_loops.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

/// Channels whose coefficients are at hand at once: whole vectors.
constexpr std::int64_t kChannels = 64;

struct Setting {
  ChannelArgs args;
  int threads = 1;
  double eps = 0, count = 1;
};

/// Of a kernel that goes over `passes` tensors like operand `x`.
Setting setting_of(const Signature& signature, const Context& context, int x, int passes) {
  const BatchNormSizes sizes = batch_norm_sizes(signature, x);
  Setting setting;
  setting.args = {.bf16 = expect_compute_dtype(signature, x),
                  .samples = sizes.samples,
                  .channels = sizes.channels,
                  .places = sizes.places};
  setting.threads = threads_for(passes * signature.operands[static_cast<std::size_t>(x)].bytes(), context.threads);
  return setting;
}

/// The same of one that reads statistics of a batch.
Setting trained_setting(const Signature& signature, const Context& context, int x, int passes) {
  Setting setting = setting_of(signature, context, x, passes);
  setting.eps = real(signature, "eps");
  setting.count = static_cast<double>(integer(signature, "count"));
  return setting;
}

/// Calls fn(first, last) for blocks of at most kChannels channels.
template <typename Fn>
void each_block(const Setting& setting, Fn&& fn) {
  const std::int64_t grain = setting.args.places == 1 ? 16 : 1;
  parallel_ranges(setting.args.channels, grain, setting.threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin; first < end; first += kChannels) fn(first, std::min(end, first + kChannels));
  });
}

/// What the sums of a channel say.
struct Moments {
  double mean, rstd;
};

Moments moments_of(const double* sums, std::int64_t channel, const Setting& setting) {
  const double mean = sums[channel] / setting.count,
               variance = sums[setting.args.channels + channel] / setting.count - mean * mean;
  return {mean, 1 / std::sqrt((variance < 0 ? 0 : variance) + setting.eps)};
}

float element(const void* of, bool bf16, std::int64_t i) {
  return bf16 ? to_f32(static_cast<const Bf16*>(of)[i]) : static_cast<const float*>(of)[i];
}

void put(void* to, bool bf16, std::int64_t i, double value, bool accumulate) {
  const auto sum = static_cast<float>(accumulate ? static_cast<double>(element(to, bf16, i)) + value : value);
  if (bf16)
    static_cast<Bf16*>(to)[i] = to_bf16(sum);
  else
    static_cast<float*>(to)[i] = sum;
}

/// y of a block of channels, by which the forward pass computes it and the backward pass finds where it is above 0.
struct BlockScales {
  float centre[kChannels] = {}, scale[kChannels] = {}, shift[kChannels] = {};

  /// `bias`: null where nothing reads the shift.
  void set(std::int64_t at, Moments moments, const void* weight, const void* bias, bool bf16, std::int64_t channel) {
    centre[at] = static_cast<float>(moments.mean);
    scale[at] = static_cast<float>(static_cast<double>(element(weight, bf16, channel)) * moments.rstd);
    if (bias != nullptr) shift[at] = element(bias, bf16, channel);
  }
  ChannelScales all() const { return {centre, scale, shift}; }
};

/// y = z, + residual, max(y, 0), where z is of x (operand 0) by moments(call, channel). The residual is operand `next`
/// if there is one, and y the operand after.
template <typename MomentsOf>
Prepared scaled(const Signature& signature, const Context& context, Setting setting, int weight, int next,
                MomentsOf moments) {
  const bool residual = flag(signature, "residual");
  setting.args.relu = flag(signature, "relu");
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, scale_channels);
  return make_kernel([=](const Call& call) {
    ChannelArgs args = setting.args;
    args.x = operand<void>(call, 0);
    if (residual) args.residual = operand<void>(call, next);
    args.to = operand<void>(call, residual ? next + 1 : next);
    each_block(setting, [&](std::int64_t first, std::int64_t last) {
      BlockScales scales;
      for (std::int64_t c = first; c < last; ++c)
        scales.set(c - first, moments(call, c), operand<void>(call, weight), operand<void>(call, weight + 1), args.bf16,
                   c);
      loop(args, scales.all(), first, last);
    });
  });
}

}  // namespace

Prepared prepare_batch_norm(const Signature& signature, const Context& context) {
  const double eps = real(signature, "eps");
  return scaled(signature, context, setting_of(signature, context, 0, 2), 1, 5, [=](const Call& call, std::int64_t c) {
    return Moments{static_cast<double>(operand<float>(call, 3)[c]),
                   1 / std::sqrt(static_cast<double>(operand<float>(call, 4)[c]) + eps)};
  });
}

Prepared prepare_batch_norm_sums(const Signature& signature, const Context& context) {
  const Setting setting = setting_of(signature, context, 0, 1);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, channel_sums);
  return make_kernel([=](const Call& call) {
    ChannelArgs args = setting.args;
    args.x = operand<void>(call, 0);
    double* sums = operand<double>(call, 1);
    each_block(setting, [&](std::int64_t first, std::int64_t last) {
      loop(args, sums + first, sums + args.channels + first, first, last);
    });
  });
}

Prepared prepare_batch_norm_apply(const Signature& signature, const Context& context) {
  const Setting setting = trained_setting(signature, context, 0, 2);
  return scaled(signature, context, setting, 2, 4,
                [=](const Call& call, std::int64_t c) { return moments_of(operand<double>(call, 1), c, setting); });
}

Prepared prepare_batch_norm_update(const Signature& signature, const Context&) {
  expect_operands(signature, 3);
  const std::int64_t channels = signature.operands[1].elements();
  expect_operand(signature, 0, DType::f64, 2 * channels);
  for (int i : {1, 2}) expect_operand(signature, i, DType::f32, channels);
  const double momentum = real(signature, "momentum"), count = static_cast<double>(integer(signature, "count"));
  return make_kernel([=](const Call& call) {
    const double* sums = operand<double>(call, 0);
    float *running_mean = operand<float>(call, 1), *running_var = operand<float>(call, 2);
    for (std::int64_t c = 0; c < channels; ++c) {
      const double mean = sums[c] / count, sample = sums[channels + c] / count - mean * mean;
      const double variance = (sample < 0 ? 0 : sample) * count / (count - 1);
      const auto before = static_cast<double>(running_mean[c]), before_var = static_cast<double>(running_var[c]);
      running_mean[c] = static_cast<float>(before + momentum * (mean - before));
      running_var[c] = static_cast<float>(before_var + momentum * (variance - before_var));
    }
  });
}

Prepared prepare_batch_norm_grad_sums(const Signature& signature, const Context& context) {
  Setting setting = trained_setting(signature, context, 1, 2);
  setting.args.relu = flag(signature, "relu");
  const bool weight = flag(signature, "weight"), bias = flag(signature, "bias"), accumulate = accumulates(signature);
  const int grad_sums = setting.args.relu ? 5 : 3, dweight = grad_sums + 1, dbias = weight ? dweight + 1 : dweight;
  const bool bf16_weight = weight && expect_compute_dtype(signature, dweight),
             bf16_bias = bias && expect_compute_dtype(signature, dbias);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, channel_products);
  return make_kernel([=](const Call& call) {
    ChannelArgs args = setting.args;
    args.dy = operand<void>(call, 0);
    args.x = operand<void>(call, 1);
    double* sums = operand<double>(call, grad_sums);
    each_block(setting, [&](std::int64_t first, std::int64_t last) {
      double centre[kChannels] = {}, rstd[kChannels] = {};
      BlockScales scales;
      for (std::int64_t c = first; c < last; ++c) {
        const Moments moments = moments_of(operand<double>(call, 2), c, setting);
        centre[c - first] = moments.mean;
        rstd[c - first] = moments.rstd;
        if (args.relu) scales.set(c - first, moments, operand<void>(call, 3), operand<void>(call, 4), args.bf16, c);
      }
      loop(args, scales.all(), centre, sums + first, sums + args.channels + first, first, last);
      for (std::int64_t c = first; c < last; ++c) {
        double& product = sums[args.channels + c];
        product *= rstd[c - first];
        if (weight) put(operand<void>(call, dweight), bf16_weight, c, product, accumulate);
        if (bias) put(operand<void>(call, dbias), bf16_bias, c, sums[c], accumulate);
      }
    });
  });
}

Prepared prepare_batch_norm_grad(const Signature& signature, const Context& context) {
  Setting setting = trained_setting(signature, context, 1, 3);
  const bool relu = setting.args.relu = flag(signature, "relu");
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, combine_channels);
  return make_kernel([=](const Call& call) {
    ChannelArgs args = setting.args;
    args.dy = operand<void>(call, 0);
    args.x = operand<void>(call, 1);
    args.to = operand<void>(call, relu ? 6 : 5);
    const void *weight = operand<void>(call, 2), *bias = relu ? operand<void>(call, 5) : nullptr;
    const double* grad_sums = operand<double>(call, 4);
    each_block(setting, [&](std::int64_t first, std::int64_t last) {
      BlockScales scales;
      float slope[kChannels] = {}, term[kChannels] = {};
      for (std::int64_t c = first; c < last; ++c) {
        const Moments moments = moments_of(operand<double>(call, 3), c, setting);
        const double factor = static_cast<double>(element(weight, args.bf16, c)) * moments.rstd;
        scales.set(c - first, moments, weight, bias, args.bf16, c);
        slope[c - first] = static_cast<float>(-factor * moments.rstd * grad_sums[args.channels + c] / setting.count);
        term[c - first] = static_cast<float>(-factor * grad_sums[c] / setting.count);
      }
      loop(args, scales.all(), slope, term, first, last);
    });
  });
}

}  // namespace trainer::kernels::cpu
