// The step's scalars and the optimizers. Learning rate, factor and the number of updates are read on the device, so
// that the same launch serves every step. Optimizers are bound by memory: of a bf16 gradient, adam with a working copy
// moves 28 bytes for each element. A thread loads all it needs of two groups of four elements, each access of a warp
// whole lines, before it uses any of it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/optimizer/states.cuh"
#include "kernels/optimizer.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = kStateThreads;
constexpr int kSumThreads = 512, kLoads = 4;

// ---- Device: scalars ----

__global__ void seed_of_loss(const double* count, std::int64_t samples, const Scalars* scalars, float* seed) {
  const double by = samples > 0 ? static_cast<double>(samples) : fmax(*count, 1.0);
  *seed = static_cast<float>(static_cast<double>(scalars->loss_scale) / by);
}

/// How a dynamic loss scale goes from one step to the next.
struct ScaleRules {
  std::int64_t growth_interval = 0;
  double growth = 1, backoff = 1, largest = 0, smallest = 0;
};

__device__ __forceinline__ bool is_finite(float x) { return x - x == 0; }
/// Whether it is -0: a step failed, and no smaller loss scale could have helped.
__device__ __forceinline__ bool is_held(float factor) { return __float_as_uint(factor) == 0x80000000U; }

__global__ void make_scalars(const double* squares, const double* loss, const double* count, Scalars* scalars,
                             std::int32_t* applied, std::int32_t* good_steps, double clip, ScaleRules rules) {
  Scalars now = *scalars;
  if (is_held(now.factor)) return;
  const double scale = static_cast<double>(now.loss_scale), norm = sqrt(*squares) / scale;
  const double clipped = clip > 0 ? fmin(1.0, clip / (norm + 1e-6)) : 1.0;
  now.grad_norm = static_cast<float>(norm);
  now.loss = static_cast<float>(*loss / fmax(*count, 1.0));
  const bool finite = is_finite(now.grad_norm) && is_finite(now.loss);
  now.factor = finite ? static_cast<float>(clipped / scale) : 0.0F;
  if (now.factor > 0) ++*applied;
  const bool may_help = good_steps != nullptr && !finite && now.loss_scale > static_cast<float>(rules.smallest);
  if (now.factor == 0 && !may_help) now.factor = -0.0F;
  if (good_steps != nullptr) {
    std::int32_t good = finite ? *good_steps + 1 : 0;
    if (!finite) {
      now.loss_scale = static_cast<float>(fmax(rules.smallest, scale * rules.backoff));
    } else if (good >= rules.growth_interval) {
      now.loss_scale = static_cast<float>(fmin(rules.largest, scale * rules.growth));
      good = 0;
    }
    *good_steps = good;
  }
  *scalars = now;
}

// ---- Device: the sum of squares ----

/// Vector `index` of x, with zeros for elements outside of [low, high).
template <typename T>
__device__ __forceinline__ Vec<T, kVector<T>> load_between(const T* x, std::int64_t index, std::int64_t low,
                                                           std::int64_t high) {
  constexpr int kN = kVector<T>;
  const std::int64_t first = index * kN;
  if (first >= low && first + kN <= high) return load<kN>(x, index);
  Vec<T, kN> v;
#pragma unroll
  for (int i = 0; i < kN; ++i) v[i] = first + i >= low && first + i < high ? x[first + i] : from_f32<T>(0.0F);
  return v;
}

/// sums[block] = Σ x² over this block's vectors, in f64 throughout: squares of gradients that are scaled leave f32.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    squares_of_blocks(const T* x, std::int64_t low, std::int64_t high, double* sums) {
  constexpr int kN = kVector<T>;
  __shared__ double shared[kSumThreads / kWarp];
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kSumThreads, end = (high + kN - 1) / kN;
  double sum = 0;
  for (std::int64_t at = low / kN + blockIdx.x * kSumThreads + threadIdx.x; at < end; at += kLoads * step) {
    Vec<T, kN> held[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) held[k] = load_between(x, at + k * step, low, high);
#pragma unroll
    for (int k = 0; k < kLoads; ++k)
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const double value = static_cast<double>(to_f32(held[k][i]));
        sum = fma(value, value, sum);
      }
  }
  sum = block_sum<kSumThreads>(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    join_squares(const double* sums, int count, double scale, bool accumulate, double* squares) {
  __shared__ double shared[kThreads / kWarp];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) sum += sums[i];
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) *squares = (accumulate ? *squares : 0.0) + scale * sum;
}

// ---- Device: optimizers ----

/// Attributes of an optimizer. log_beta: ln β, of which 1 − βᵗ is made without cancellation.
struct Rates {
  float beta1 = 0, beta2 = 0, rest1 = 0, rest2 = 0;  ///< βs (of sgd, beta1 is the momentum); 1 − β, rounded once
  double log_beta1 = 0, log_beta2 = 0;
  float eps = 0, weight_decay = 0;
  bool nesterov = false;
};

struct Operands {
  float* master;
  const void* gradient;
  StateMemory m, v;
  const float* lr;
  const Scalars* scalars;
  const std::int32_t* applied;
  void* working;
  std::int64_t count, decaying;  ///< elements; of which the first so many decay
};

/// What all elements share in an update.
struct Step {
  float factor, keep, size,
      v_scale;  ///< keep: 1 − lr · weight_decay; size: lr, of adam lr / (1 − β₁ᵗ); v_scale: 1 / √(1 − β₂ᵗ)
};

__device__ __forceinline__ float one_less_power(double log_beta, std::int32_t t) {
  return -expm1f(static_cast<float>(log_beta * t));
}

// Each `update` is written with its fused operations, so that the bits of an element do not depend on where it stands.
template <bool Momentum>
struct Sgd {
  static constexpr int kStates = Momentum ? 1 : 0;
  static constexpr bool kReadsMaster = true;
  __device__ static Step step(const Operands& o, const Rates& a, float factor) {
    const float lr = *o.lr;
    return {factor, fmaf(-lr, a.weight_decay, 1.0F), lr, 1};
  }
  __device__ static float update(const Step& s, const Rates& a, float keep, float w, float gradient, float& m, float&) {
    float g = gradient * s.factor;
    if constexpr (Momentum) {
      m = fmaf(a.beta1, m, g);
      g = a.nesterov ? fmaf(a.beta1, m, g) : m;
    }
    return fmaf(w, keep, -(s.size * g));
  }
};
/// muon: what stands for the gradient is the update itself.
struct Muon {
  static constexpr int kStates = 0;
  static constexpr bool kReadsMaster = true;
  __device__ static Step step(const Operands& o, const Rates& a, float) { return Sgd<false>::step(o, a, 1); }
  __device__ static float update(const Step& s, const Rates&, float keep, float w, float x, float&, float&) {
    return fmaf(w, keep, -(s.size * x));
  }
};
struct Adam {
  static constexpr int kStates = 2;
  static constexpr bool kReadsMaster = true;
  __device__ static Step step(const Operands& o, const Rates& a, float factor) {
    const float lr = *o.lr;
    const std::int32_t t = *o.applied;
    return {factor, fmaf(-lr, a.weight_decay, 1.0F), lr / one_less_power(a.log_beta1, t),
            1.0F / sqrtf(one_less_power(a.log_beta2, t))};
  }
  __device__ static float update(const Step& s, const Rates& a, float keep, float w, float gradient, float& m,
                                 float& v) {
    const float g = gradient * s.factor;
    m = fmaf(a.beta1, m, a.rest1 * g);
    v = fmaf(a.beta2, v, a.rest2 * g * g);
    return fmaf(w, keep, -(s.size * m / fmaf(sqrtf(v), s.v_scale, a.eps)));
  }
};
struct Lion {
  static constexpr int kStates = 1;
  static constexpr bool kReadsMaster = true;
  __device__ static Step step(const Operands& o, const Rates& a, float factor) {
    const float lr = *o.lr;
    return {factor, fmaf(-lr, a.weight_decay, 1.0F), lr, 1};
  }
  __device__ static float update(const Step& s, const Rates& a, float keep, float w, float gradient, float& m, float&) {
    const float g = gradient * s.factor, c = fmaf(a.beta1, m, a.rest1 * g);
    m = fmaf(a.beta2, m, a.rest2 * g);
    return fmaf(w, keep, -(s.size * (c == 0 ? c : copysignf(1.0F, c))));
  }
};
/// muon_momentum: u is written where others update the master. beta1: the momentum.
struct MuonMomentum {
  static constexpr int kStates = 1;
  static constexpr bool kReadsMaster = false;
  __device__ static Step step(const Operands&, const Rates&, float factor) { return {factor, 1, 0, 1}; }
  __device__ static float update(const Step& s, const Rates& a, float, float, float gradient, float& m, float&) {
    const float g = gradient * s.factor;
    m = fmaf(a.rest1, g - m, m);
    return a.nesterov ? fmaf(a.beta1, m - g, g) : m;
  }
};

struct NoCopy {};

// S: the states' type. W: the working copy's type, or NoCopy.
template <typename Rule, typename S, typename G, typename W>
__global__ void __launch_bounds__(kThreads) update(Operands o, Rates rates, CodesOf<S> codes) {
  __shared__ std::uint32_t shared[2 * kCodeWords];
  if constexpr (std::is_same_v<S, Int8>) {
    share_codes(codes, shared);
    __syncthreads();
  }
  Vec<G, kGroup> gradient[kGroups];
  F32Group master[kGroups];
  ThreadState<S, 0> m;
  ThreadState<S, 1> v;
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    const std::int64_t at = my_group<S>(k);
    if constexpr (Rule::kReadsMaster) master[k] = load_group(o.master, at, o.count);
    gradient[k] = load_group(static_cast<const G*>(o.gradient), at, o.count);
  }
  if constexpr (Rule::kStates >= 1) m.load(o.m, o.count, shared);
  if constexpr (Rule::kStates >= 2) v.load(o.v, o.count, shared);
  const auto store_copy = [&](std::int64_t at, const F32Group& weights) {
    if constexpr (!std::is_same_v<W, NoCopy>) {
      Vec<W, kGroup> rounded;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) rounded[i] = from_f32<W>(weights[i]);
      store_group(static_cast<W*>(o.working), at, o.count, rounded);
    }
  };
  const float factor = o.scalars->factor;
  if (factor == 0) {
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      if constexpr (!Rule::kReadsMaster)
        store_group(o.master, my_group<S>(k), o.count, F32Group{});
      else
        store_copy(my_group<S>(k), master[k]);
    }
    return;
  }
  const Step step = Rule::step(o, rates, factor);
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    const std::int64_t at = my_group<S>(k);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      float none = 0;
      float& first_state = Rule::kStates >= 1 ? m.value[k][i] : none;
      float& second_state = Rule::kStates >= 2 ? v.value[k][i] : none;
      const float keep = at * kGroup + i < o.decaying ? step.keep : 1.0F;
      master[k][i] = Rule::update(step, rates, keep, master[k][i], to_f32(gradient[k][i]), first_state, second_state);
    }
    store_group(o.master, at, o.count, master[k]);
    store_copy(at, master[k]);
  }
  if constexpr (Rule::kStates >= 1) m.store(o.m, o.count, shared, *o.applied);
  if constexpr (Rule::kStates >= 2) v.store(o.v, o.count, shared, *o.applied);
}

// ---- Host ----

Grid one_thread() { return {.blocks = 1, .threads = 1}; }

/// Where each operand of an optimizer stands; -1 where it is absent.
struct Places {
  int master = 0, gradient = 1;
  StateOperands states;
  int lr = -1, scalars = -1, applied = -1, working = -1;
};

/// Checks what all have: master, gradient, scalars and applied.
void expect_places(const Signature& s, const Places& at, std::int64_t count) {
  expect_operand(s, at.master, DType::f32, count);
  const DType gradient = s.operands[static_cast<std::size_t>(at.gradient)].dtype;
  if (gradient != DType::f32 && gradient != DType::bf16) refuse_dtypes(s, "f32 or bf16 gradients");
  expect_operand(s, at.gradient, gradient, count);
  expect_operand(s, at.scalars, DType::f32, 4);
  expect_operand(s, at.applied, DType::i32, 1);
}

Places places_of(const Signature& s, int states) {
  const bool working = flag(s, "working");
  const std::int64_t count = s.operands[0].elements();
  Places at;
  at.states = expect_states(s, 2, states, count);
  at.lr = at.states.end, at.scalars = at.lr + 1, at.applied = at.lr + 2;
  expect_operands(s, static_cast<std::size_t>(at.lr + 3 + (working ? 1 : 0)));
  expect_places(s, at, count);
  expect_operand(s, at.lr, DType::f32, 1);
  if (!working) return at;
  at.working = at.lr + 3;
  const DType copy = s.operands[static_cast<std::size_t>(at.working)].dtype;
  if (copy != DType::bf16 && copy != DType::f16) refuse_dtypes(s, "a bf16 or f16 working copy");
  expect_operand(s, at.working, copy, count);
  return at;
}

Rates rates_of(const Signature& s) {
  Rates rates;
  rates.weight_decay = static_cast<float>(real(s, "weight_decay"));
  return rates;
}

Rates with_betas(const Signature& s) {
  Rates rates = rates_of(s);
  const double beta1 = real(s, "beta1"), beta2 = real(s, "beta2");
  rates.beta1 = static_cast<float>(beta1), rates.rest1 = static_cast<float>(1.0 - beta1),
  rates.log_beta1 = std::log(beta1);
  rates.beta2 = static_cast<float>(beta2), rates.rest2 = static_cast<float>(1.0 - beta2),
  rates.log_beta2 = std::log(beta2);
  return rates;
}

StateMemory state_of(const Call& call, const StateOperands& states, std::size_t index) {
  if (index >= states.states.size()) return {};
  const StateOperands::One& one = states.states[index];
  return {operand<void>(call, one.at), one.scales < 0 ? nullptr : operand<float>(call, one.scales)};
}

template <typename Rule, typename S, typename G, typename W>
Prepared update_kernel(const Signature& s, const Places& at, const Rates& rates) {
  const std::int64_t count = s.operands[static_cast<std::size_t>(at.master)].elements();
  const std::int64_t decay_elements = at.lr < 0 ? 0 : integer(s, "decay_elements");  // momentum alone decays nothing
  return make_kernel([=](const Call& call) {
    const Operands operands{.master = operand<float>(call, at.master),
                            .gradient = operand<void>(call, at.gradient),
                            .m = state_of(call, at.states, 0),
                            .v = state_of(call, at.states, 1),
                            .lr = at.lr < 0 ? nullptr : operand<float>(call, at.lr),
                            .scalars = operand<Scalars>(call, at.scalars),
                            .applied = operand<std::int32_t>(call, at.applied),
                            .working = at.working < 0 ? nullptr : operand<void>(call, at.working),
                            .count = count,
                            .decaying = std::clamp<std::int64_t>(decay_elements - call.origin, 0, count)};
    launch(call, {.blocks = blocks_for(count, kThreads * kGroup * kGroups), .threads = kThreads}, update<Rule, S, G, W>,
           operands, rates, CodesOf<S>{});
  });
}

/// With the types that the operands have.
template <typename Rule, bool HasWorking = true>
Prepared update_kernel(const Signature& s, const Places& at, const Rates& rates) {
  const auto with_working = [&]<typename S, typename G>(S, G) {
    if constexpr (HasWorking) {
      if (at.working >= 0 && s.operands[static_cast<std::size_t>(at.working)].dtype == DType::f16)
        return update_kernel<Rule, S, G, f16>(s, at, rates);
      if (at.working >= 0) return update_kernel<Rule, S, G, bf16>(s, at, rates);
    }
    return update_kernel<Rule, S, G, NoCopy>(s, at, rates);
  };
  const auto with_gradient = [&]<typename S>(S state) {
    return s.operands[static_cast<std::size_t>(at.gradient)].dtype == DType::bf16 ? with_working(state, bf16{})
                                                                                  : with_working(state, float{});
  };
  if constexpr (Rule::kStates > 0) {
    if (at.states.format == StateFormat::bf16) return with_gradient(bf16{});
    if (at.states.format == StateFormat::int8) return with_gradient(Int8{});
  }
  return with_gradient(float{});
}

template <typename Rule>
Prepared optimizer(const Signature& s, const Rates& rates) {
  return update_kernel<Rule>(s, places_of(s, Rule::kStates), rates);
}

template <typename T>
Prepared squares_kernel(const Signature& s, int units) {
  const bool accumulate = accumulates(s);
  const std::int64_t first = integer(s, "first"),
                     last = given_integer(s, "last").value_or(std::numeric_limits<std::int64_t>::max());
  const double scale = real(s, "scale");
  const std::int64_t count = s.operands[0].elements();
  const unsigned blocks = std::min(blocks_for(count, kSumThreads * kVector<T> * kLoads),
                                   static_cast<unsigned>(2 * units));  // the workspace has so many sums
  return make_kernel([=](const Call& call) {
    const std::int64_t low = std::clamp<std::int64_t>(first - call.origin, 0, count),
                       high = std::clamp(last - call.origin, low, count);
    double* const sums = static_cast<double*>(call.workspace);
    launch(call, {.blocks = blocks, .threads = kSumThreads}, squares_of_blocks<T>, operand<T>(call, 0), low, high,
           sums);
    launch(call, {.blocks = 1, .threads = kThreads}, join_squares, sums, static_cast<int>(blocks), scale, accumulate,
           operand<double>(call, 1));
  });
}

ScaleRules rules_of(const Signature& s) {
  return {integer(s, "growth_interval"), real(s, "growth_factor"), real(s, "backoff_factor"), real(s, "largest_scale"),
          real(s, "smallest_scale")};
}

}  // namespace

Prepared prepare_loss_seed(const Signature& s, const Context&) {
  expect_operands(s, 3);
  expect_operand(s, 0, DType::f64, 1);
  expect_operand(s, 1, DType::f32, 4);
  expect_operand(s, 2, DType::f32, 1);
  return make_kernel([samples = given_integer(s, "samples").value_or(0)](const Call& call) {
    launch(call, one_thread(), seed_of_loss, operand<double>(call, 0), samples, operand<Scalars>(call, 1),
           operand<float>(call, 2));
  });
}

Prepared prepare_sum_squares(const Signature& s, const Context& context) {
  expect_operands(s, 2);
  expect_operand(s, 1, DType::f64, 1);
  return with_type(expect_compute_dtype(s, 0), [&]<typename T>(T) { return squares_kernel<T>(s, context.units); });
}

Prepared prepare_update_scalars(const Signature& s, const Context&) {
  const bool dynamic = flag(s, "dynamic");
  expect_operands(s, dynamic ? 6 : 5);
  for (int i = 0; i < 3; ++i) expect_operand(s, i, DType::f64, 1);
  expect_operand(s, 3, DType::f32, 4);
  for (int i = 4; i < (dynamic ? 6 : 5); ++i) expect_operand(s, i, DType::i32, 1);
  const double clip = real(s, "clip_norm");
  const ScaleRules rules = dynamic ? rules_of(s) : ScaleRules{};
  return make_kernel([=](const Call& call) {
    launch(call, one_thread(), make_scalars, operand<double>(call, 0), operand<double>(call, 1),
           operand<double>(call, 2), operand<Scalars>(call, 3), operand<std::int32_t>(call, 4),
           dynamic ? operand<std::int32_t>(call, 5) : nullptr, clip, rules);
  });
}

Prepared prepare_sgd(const Signature& s, const Context&) {
  Rates rates = rates_of(s);
  rates.nesterov = flag(s, "nesterov");
  if (!flag(s, "has_momentum")) return optimizer<Sgd<false>>(s, rates);
  rates.beta1 = static_cast<float>(real(s, "momentum"));
  return optimizer<Sgd<true>>(s, rates);
}

Prepared prepare_adam(const Signature& s, const Context&) {
  Rates rates = with_betas(s);
  rates.eps = static_cast<float>(real(s, "eps"));
  return optimizer<Adam>(s, rates);
}

Prepared prepare_lion(const Signature& s, const Context&) { return optimizer<Lion>(s, with_betas(s)); }

Prepared prepare_muon(const Signature& s, const Context&) { return optimizer<Muon>(s, rates_of(s)); }

Prepared prepare_muon_momentum(const Signature& s, const Context&) {
  const std::int64_t count = s.operands[0].elements();
  Places at{.gradient = 0, .states = expect_states(s, 1, 1, count)};
  at.scalars = at.states.end, at.applied = at.scalars + 1, at.master = at.scalars + 2;
  expect_operands(s, static_cast<std::size_t>(at.master) + 1);
  expect_places(s, at, count);
  const double momentum = real(s, "momentum");
  Rates rates;
  rates.beta1 = static_cast<float>(momentum), rates.rest1 = static_cast<float>(1.0 - momentum);
  rates.nesterov = flag(s, "nesterov");
  return update_kernel<MuonMomentum, false>(s, at, rates);
}

}  // namespace trainer::kernels::cuda
