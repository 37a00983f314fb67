// The step's scalars and the optimizers, cut over elements.
#include "kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/op_record.h"
#include "kernels/cpu/copy/convert_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/optimizer/optimizer_loops.h"
#include "kernels/cpu/optimizer/states.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

constexpr std::int64_t kChunk = 32768;  // elements summed at a time

std::int64_t chunks_of(std::int64_t count) { return (count + kChunk - 1) / kChunk; }

/// Where the operands behind the states stand; -1 where one is absent.
struct Places {
  int lr = -1, scalars = -1, applied = -1, working = -1;
};

struct Update {
  void (*loop)(const UpdateArgs&, std::int64_t, std::int64_t) = nullptr;
  decltype(&portable::convert) round = nullptr;
  UpdateArgs args;
  Places at;
  States states;
  std::int64_t count = 0, decay_elements = 0;
  double beta1 = 0, beta2 = 0, weight_decay = 0;
  bool corrects_bias = false;
  bool takes_factor = true;  ///< multiplies gradients by it
  int threads = 1;

  /// The arguments of one call for elements that decay; states that are f32 among them.
  UpdateArgs now(const Call& call) const {
    UpdateArgs now = args;
    now.master = operand<float>(call, 0);
    now.gradient = operand<void>(call, 1);
    if (states.format() == StateFormat::f32) now.m = states.as_f32(call, 0), now.v = states.as_f32(call, 1);
    if (at.working >= 0) now.working = operand<Bf16>(call, at.working);
    const double lr = static_cast<double>(*operand<float>(call, at.lr));
    const double t = *operand<std::int32_t>(call, at.applied);
    if (takes_factor) now.factor = operand<Scalars>(call, at.scalars)->factor;
    now.keep = static_cast<float>(1.0 - lr * weight_decay);
    now.step = static_cast<float>(corrects_bias ? lr / (1.0 - std::pow(beta1, t)) : lr);
    if (corrects_bias) now.v_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, t)));
    return now;
  }

  void run(const Call& call) const {
    if (operand<Scalars>(call, at.scalars)->factor == 0) return renew_copy(call);
    const UpdateArgs decaying = now(call);
    const std::int64_t border = std::clamp<std::int64_t>(decay_elements - call.origin, 0, count);
    if (states.format() != StateFormat::f32) return run_unpacked(call, decaying, border);
    UpdateArgs plain = decaying;
    plain.keep = 1;
    parallel_ranges(count, 64, threads, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t middle = std::clamp(border, begin, end);
      loop(decaying, begin, middle);
      loop(plain, middle, end);
    });
  }

  /// There is no update: the working copy is the master as it was.
  void renew_copy(const Call& call) const {
    if (at.working < 0) return;
    parallel_ranges(count, 64, threads, [&](std::int64_t begin, std::int64_t end) {
      round(true, operand<void>(call, 0), operand<void>(call, at.working), begin, end);
    });
  }

  /// The same of states that are not f32: the loop works on f32 copies of a few blocks.
  void run_unpacked(const Call& call, const UpdateArgs& decaying, std::int64_t border) const {
    states.for_each_piece(call, *operand<std::int32_t>(call, at.applied), count, threads,
                          [&](std::int64_t begin, std::int64_t end, float* m, float* v) {
                            UpdateArgs piece = decaying.from(begin);
                            piece.m = m;
                            piece.v = v;
                            const std::int64_t middle = std::clamp(border, begin, end) - begin;
                            loop(piece, 0, middle);
                            piece.keep = 1;
                            loop(piece, middle, end - begin);
                          });
  }
};

/// What all optimizers share: the operands from `lr` on, decay, the working copy.
Update update_of(const Signature& signature, const Context& context, int states) {
  const bool working = flag(signature, "working");
  Update update;
  update.count = signature.operands[0].elements();
  update.args.bf16_gradient = expect_compute_dtype(signature, 1);
  expect_operand(signature, 0, DType::f32, update.count);
  expect_operand(signature, 1, signature.operands[1].dtype, update.count);
  update.states = States(signature, 2, states, context.isa);
  const int lr = update.states.end();
  expect_operands(signature, static_cast<std::size_t>(lr + 3 + (working ? 1 : 0)));
  update.at = {.lr = lr, .scalars = lr + 1, .applied = lr + 2, .working = working ? lr + 3 : -1};
  expect_operand(signature, update.at.lr, DType::f32, 1);
  expect_operand(signature, update.at.scalars, DType::f32, 4);
  expect_operand(signature, update.at.applied, DType::i32, 1);
  if (working) expect_operand(signature, update.at.working, DType::bf16, update.count);
  update.round = CHOOSE_BY_ISA(context.isa, convert);
  update.weight_decay = real(signature, "weight_decay");
  update.decay_elements = integer(signature, "decay_elements");
  update.threads = threads_for(signature.operands[0].bytes() * (3 + states), context.threads);
  return update;
}

void set_betas(Update& update, const Signature& signature) {
  update.beta1 = real(signature, "beta1");
  update.beta2 = real(signature, "beta2");
  update.args.beta1 = static_cast<float>(update.beta1);
  update.args.beta2 = static_cast<float>(update.beta2);
  update.args.one_less_beta1 = static_cast<float>(1.0 - update.beta1);
  update.args.one_less_beta2 = static_cast<float>(1.0 - update.beta2);
}

/// How a dynamic loss scale goes from one step to the next.
struct ScaleRules {
  std::int64_t growth_interval = 0;
  double growth = 1, backoff = 1, largest = 0, smallest = 0;

  void apply(bool finite, float& scale, std::int32_t& good_steps) const {
    good_steps = finite ? good_steps + 1 : 0;
    const double now = static_cast<double>(scale);
    if (!finite) {
      scale = static_cast<float>(std::max(smallest, now * backoff));
    } else if (good_steps >= growth_interval) {
      scale = static_cast<float>(std::min(largest, now * growth));
      good_steps = 0;
    }
  }
};

ScaleRules scale_rules_of(const Signature& signature) {
  return {integer(signature, "growth_interval"), real(signature, "growth_factor"), real(signature, "backoff_factor"),
          real(signature, "largest_scale"), real(signature, "smallest_scale")};
}

Prepared kernel_of(const Update& update) {
  return make_kernel([update](const Call& call) { update.run(call); });
}

}  // namespace

Prepared prepare_loss_seed(const Signature& signature, const Context&) {
  expect_operands(signature, 3);
  expect_operand(signature, 0, DType::f64, 1);
  expect_operand(signature, 1, DType::f32, 4);
  expect_operand(signature, 2, DType::f32, 1);
  return make_kernel([samples = given_integer(signature, "samples")](const Call& call) {
    const double scale = static_cast<double>(operand<Scalars>(call, 1)->loss_scale);
    const double count = samples ? static_cast<double>(*samples) : std::max(*operand<double>(call, 0), 1.0);
    *operand<float>(call, 2) = static_cast<float>(scale / count);
  });
}

std::int64_t sum_squares_workspace(const Signature& signature) {
  return (chunks_of(signature.operands[0].elements()) * 8 + 63) / 64 * 64;
}

Prepared prepare_sum_squares(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  const TensorDesc& x = signature.operands[0];
  const bool bf16 = expect_compute_dtype(signature, 0);
  expect_operand(signature, 1, DType::f64, 1);
  const bool accumulate = accumulates(signature);
  const std::int64_t first = integer(signature, "first"),
                     last = given_integer(signature, "last").value_or(std::numeric_limits<std::int64_t>::max());
  const double scale = real(signature, "scale");
  const std::int64_t count = x.elements(), chunks = chunks_of(count);
  const int threads = threads_for(x.bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, sum_squares);
  return make_kernel([=](const Call& call) {
    double* sums = static_cast<double*>(call.workspace);
    const std::int64_t low = std::clamp<std::int64_t>(first - call.origin, 0, count),
                       high = std::clamp(last - call.origin, low, count);
    parallel_ranges(chunks, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        const std::int64_t from = std::clamp(chunk * kChunk, low, high);
        sums[chunk] = loop(bf16, operand<void>(call, 0), from, std::clamp((chunk + 1) * kChunk, from, high));
      }
    });
    double total = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += sums[chunk];
    double* squares = operand<double>(call, 1);
    *squares = (accumulate ? *squares : 0.0) + scale * total;
  });
}

Prepared prepare_update_scalars(const Signature& signature, const Context&) {
  const bool dynamic = flag(signature, "dynamic");
  expect_operands(signature, dynamic ? 6 : 5);
  for (int i = 0; i < 3; ++i) expect_operand(signature, i, DType::f64, 1);
  expect_operand(signature, 3, DType::f32, 4);
  for (int i = 4; i < (dynamic ? 6 : 5); ++i) expect_operand(signature, i, DType::i32, 1);
  const double clip = real(signature, "clip_norm");
  const ScaleRules rules = dynamic ? scale_rules_of(signature) : ScaleRules{};
  return make_kernel([=](const Call& call) {
    const double squares = *operand<double>(call, 0), loss = *operand<double>(call, 1),
                 count = *operand<double>(call, 2);
    Scalars* scalars = operand<Scalars>(call, 3);
    if (scalars->factor == 0 && std::signbit(scalars->factor)) return;
    const double scale = static_cast<double>(scalars->loss_scale), norm = std::sqrt(squares) / scale;
    const double clipped = clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
    scalars->grad_norm = static_cast<float>(norm);
    scalars->loss = static_cast<float>(loss / std::max(count, 1.0));
    const bool finite = std::isfinite(scalars->grad_norm) && std::isfinite(scalars->loss);
    scalars->factor = finite ? static_cast<float>(clipped / scale) : 0.0f;
    if (scalars->factor > 0) ++*operand<std::int32_t>(call, 4);
    const bool may_help = dynamic && !finite && scalars->loss_scale > static_cast<float>(rules.smallest);
    if (scalars->factor == 0 && !may_help) scalars->factor = -0.0f;
    if (dynamic) rules.apply(finite, scalars->loss_scale, *operand<std::int32_t>(call, 5));
  });
}

Prepared prepare_sgd(const Signature& signature, const Context& context) {
  const bool has_momentum = flag(signature, "has_momentum");
  Update update = update_of(signature, context, has_momentum ? 1 : 0);
  update.args.beta1 = has_momentum ? static_cast<float>(real(signature, "momentum")) : 0.0f;
  update.args.nesterov = flag(signature, "nesterov");
  update.loop = CHOOSE_BY_ISA_OR_BF16(context.isa, sgd);
  return kernel_of(update);
}

Prepared prepare_adam(const Signature& signature, const Context& context) {
  Update update = update_of(signature, context, 2);
  set_betas(update, signature);
  update.args.eps = static_cast<float>(real(signature, "eps"));
  update.corrects_bias = true;
  update.loop = CHOOSE_BY_ISA_OR_BF16(context.isa, adam);
  return kernel_of(update);
}

Prepared prepare_lion(const Signature& signature, const Context& context) {
  Update update = update_of(signature, context, 1);
  set_betas(update, signature);
  update.loop = CHOOSE_BY_ISA_OR_BF16(context.isa, lion);
  return kernel_of(update);
}

Prepared prepare_muon(const Signature& signature, const Context& context) {
  Update update = update_of(signature, context, 0);
  update.takes_factor = false;
  update.loop = CHOOSE_BY_ISA_OR_BF16(context.isa, sgd);
  return kernel_of(update);
}

}  // namespace trainer::kernels::cpu
