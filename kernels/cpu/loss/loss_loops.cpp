// Loops file (vec.h). A row of logits is read from memory once: its second pass finds it in L2.
#include "kernels/cpu/loss/loss_loops.h"

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

/// e^t for t <= 0, but 2^-126 below that; NaN stays NaN.
VEC_INLINE F32 exp_of_negative(F32 t) { return exp2_in_range(max(splat(-126.0f), t * splat(1.44269504f))); }

/// e^(x − most), for the sum of a row; exactly 1 for the largest. Of bf16, which has been rounded to 2^-9 before,
/// within 2^-18.
VEC_INLINE F32 exp_below(F32 x, float most, const float*) { return exp_of_negative(x - most); }
VEC_INLINE F32 exp_below(F32 x, float most, const Bf16*) {
  return exp2_in_range_short(max(splat(-126.0f), (x - most) * splat(1.44269504f)));
}

/// e^t, within 2^-12 where it is to be rounded to bf16.
VEC_INLINE F32 exp_of_negative_for(F32 t, const float*) { return exp_of_negative(t); }
VEC_INLINE F32 exp_of_negative_for(F32 t, const Bf16*) {
  return exp2_in_range_quick(max(splat(-126.0f), t * splat(1.44269504f)));
}

template <typename T>
float largest_of(const T* x, std::int64_t count) {
  const F32 lowest = splat(-__builtin_inff());
  F32 a = lowest, b = lowest, c = lowest, d = lowest;
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    a = max(a, load(x + i));
    b = max(b, load(x + i + kLanes));
    c = max(c, load(x + i + 2 * kLanes));
    d = max(d, load(x + i + 3 * kLanes));
  }
  float most = largest(max(max(a, b), max(c, d)));
  for (; i < count; ++i) most = to_f32(x[i]) > most ? to_f32(x[i]) : most;
  return most;
}

/// ln of one number, by the vector function.
VEC_INLINE float log_of(float x) { return log(splat(x))[0]; }

/// Index of the first element that equals `value`; `count` if none does.
template <typename T>
std::int64_t first_equal(const T* x, std::int64_t count, float value) {
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    const I32 a = load(x + i) == value, b = load(x + i + kLanes) == value;
    const I32 c = load(x + i + 2 * kLanes) == value, d = load(x + i + 3 * kLanes) == value;
    if (first_lane((a | b) | (c | d)) < kLanes) break;
  }
  for (; i + kLanes <= count; i += kLanes)
    if (const int lane = first_lane(load(x + i) == value); lane < kLanes) return i + lane;
  if (i == count) return count;
  const int lane = first_lane(load_first(x + i, static_cast<int>(count - i)) == value);
  return i + lane < count ? i + lane : count;
}

template <typename T>
bool has_nan(const T* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    if (to_f32(x[i]) != to_f32(x[i])) return true;
  return false;
}

template <typename T>
void cross_entropy_stats_row(const CrossEntropyArgs& args, std::int64_t row) {
  const T* x = static_cast<const T*>(args.logits) + row * args.columns;
  float* stats = args.stats + row * kLossStats;
  const float most = largest_of(x, args.present);
  F32 plain{};  // one chain of additions hides behind the exponentials
  const float total = sum(sum_of(
      args.present, [&](std::int64_t i, auto load) __attribute__((always_inline)) {
        const F32 v = load(x + i);
        plain += v;
        return exp_below(v, most, x);
      }));
  const std::int64_t at = args.targets[row] == args.ignore_index ? -1 : args.targets[row] - args.first;
  stats[0] = most;
  stats[1] = total;
  stats[2] = at >= 0 && at < args.present ? to_f32(x[at]) : 0.0f;
  stats[3] = sum(plain);
  stats[4] = args.present == 0 ? -1.0f : static_cast<float>(args.first + first_equal(x, args.present, most));
  if (stats[3] != stats[3] && has_nan(x, args.present)) stats[4] = __builtin_nanf("");
}

/// The loss of a row whose sum of exponentials is e^most · e^log_total. In f64 and from the two parts of lse, whose sum
/// has lost the low bits of the smaller.
VEC_INLINE double loss_of(float most, float log_total, float at_target, float smoothing, float mean) {
  const double lse = static_cast<double>(most) + static_cast<double>(log_total);
  const double loss = lse - static_cast<double>(at_target);
  if (smoothing == 0) return loss;
  return (1.0 - static_cast<double>(smoothing)) * loss +
         static_cast<double>(smoothing) * (lse - static_cast<double>(mean));
}

void cross_entropy_gathered_row(const CrossEntropyArgs& args, std::int64_t row) {
  const auto part = [&](std::int64_t p) { return args.stats + (p * args.rows + row) * kLossStats; };
  float most = -__builtin_inff();
  for (std::int64_t p = 0; p < args.parts; ++p) most = part(p)[0] > most ? part(p)[0] : most;
  float total = 0, at_target = 0, plain = 0;
  for (std::int64_t p = 0; p < args.parts; ++p) {
    total += part(p)[1] * exp_of_negative(splat(part(p)[0] - most))[0];
    at_target += part(p)[2];  // of one part alone it is not 0
    plain += part(p)[3];
  }
  const float log_total = log_of(total);
  args.lse[row] = most + log_total;
  args.losses[row] = args.targets[row] == args.ignore_index ? 0
                                                            : loss_of(most, log_total, at_target, args.smoothing,
                                                                      plain / static_cast<float>(args.classes));
}

/// The loss of a row goes to `losses`. Returns the row's lse.
template <typename T>
float cross_entropy_row(const CrossEntropyArgs& args, std::int64_t row) {
  const T* x = static_cast<const T*>(args.logits) + row * args.classes;
  const float most = largest_of(x, args.classes);
  const float total =
      sum(sum_of(args.classes, [&](std::int64_t i, auto load) { return exp_below(load(x + i), most, x); }));
  const float log_total = log_of(total), lse = most + log_total;
  const std::int32_t target = args.targets[row];
  if (target == args.ignore_index) {
    args.losses[row] = 0;
    return lse;
  }
  float mean = 0;
  if (args.smoothing != 0)
    mean = sum(sum_of(args.classes, [&](std::int64_t i, auto load) { return load(x + i); })) /
           static_cast<float>(args.classes);
  args.losses[row] = loss_of(most, log_total, to_f32(x[target]), args.smoothing, mean);
  return lse;
}

template <typename T>
void cross_entropy_grad_row(const CrossEntropyArgs& args, std::int64_t row, float lse) {
  const T* x = static_cast<const T*>(args.logits) + row * args.columns;
  T* dx = static_cast<T*>(args.dlogits) + row * args.columns;
  const std::int32_t target = args.targets[row];
  const bool counts = target != args.ignore_index;
  for_each_vector(counts ? args.present : 0, args.columns,
                  [&](std::int64_t i, auto, auto store) { store(dx + i, F32{}); });
  if (!counts) return;
  const float even = args.smoothing / static_cast<float>(args.classes);
  const float seed = args.seeds[row / args.rows_of_seed];
  const F32 scale = splat(seed), less = splat(-seed * even);
  const std::int64_t at = target - args.first;
  const bool here = at >= 0 && at < args.present;
  const float at_target = here ? to_f32(x[at]) : 0;  // before dx, which may be x, is written
  for_each_vector(0, args.present, [&](std::int64_t i, auto load, auto store) {
    store(dx + i, fma(exp_of_negative_for(load(x + i) - lse, x), scale, less));
  });
  if (!here) return;
  const float probability = exp_of_negative(splat(at_target - lse))[0];
  store_first(dx + at, splat(seed * (probability - (1.0f - args.smoothing) - even)), 1);
}

template <typename T>
void correct_row(const CrossEntropyArgs& args, std::int64_t row) {
  const T* x = static_cast<const T*>(args.logits) + row * args.classes;
  const std::int32_t target = args.targets[row];
  args.losses[row] = 0;
  if (target == args.ignore_index) return;
  const float chosen = to_f32(x[target]);
  I32 beaten{};
  const auto look = [&](std::int64_t begin, std::int64_t end, auto is_below) __attribute__((always_inline)) {
    for (; begin + kLanes <= end; begin += kLanes) beaten |= ~is_below(load(x + begin));
    if (begin < end) {
      const int left = static_cast<int>(end - begin);
      beaten |= bits_of(keep_first(from_bits(~is_below(load_first(x + begin, left))), left));
    }
  };
  look(
      0, target, [&](F32 v) __attribute__((always_inline)) { return v < chosen; });
  look(
      target, args.classes, [&](F32 v) __attribute__((always_inline)) { return v <= chosen; });
  std::int32_t any = 0;
  for (int lane = 0; lane < kLanes; ++lane) any |= beaten[lane];
  args.losses[row] = any == 0 ? 1 : 0;
}

template <typename P, typename T>
double squared_error_of(const P* p, const T* t, std::int64_t begin, std::int64_t end) {
  SumF64 total;
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto) { total.add_square(load(p + i) - load(t + i)); });
  return total.total();
}

template <typename P, typename T>
void squared_error_grad_of(const P* p, const T* t, P* dp, float seed, std::int64_t begin, std::int64_t end) {
  const F32 scale = splat(2 * seed);
  for_each_vector(begin, end,
                  [&](std::int64_t i, auto load, auto store) { store(dp + i, (load(p + i) - load(t + i)) * scale); });
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row)
    args.lse[row] = args.bf16 ? cross_entropy_row<Bf16>(args, row) : cross_entropy_row<float>(args, row);
}

void cross_entropy_stats(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row)
    args.bf16 ? cross_entropy_stats_row<Bf16>(args, row) : cross_entropy_stats_row<float>(args, row);
}

void cross_entropy_gathered(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) cross_entropy_gathered_row(args, row);
}

void cross_entropy_grad(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float lse = args.lse[row];
    args.bf16 ? cross_entropy_grad_row<Bf16>(args, row, lse) : cross_entropy_grad_row<float>(args, row, lse);
  }
}

void cross_entropy_and_grad(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row)
    args.bf16 ? cross_entropy_grad_row<Bf16>(args, row, cross_entropy_row<Bf16>(args, row))
              : cross_entropy_grad_row<float>(args, row, cross_entropy_row<float>(args, row));
}

void correct(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row)
    args.bf16 ? correct_row<Bf16>(args, row) : correct_row<float>(args, row);
}

double squared_error(const MseArgs& args, std::int64_t begin, std::int64_t end) {
  const auto with = [&](const auto* p) {
    return args.target_bf16 ? squared_error_of(p, static_cast<const Bf16*>(args.target), begin, end)
                            : squared_error_of(p, static_cast<const float*>(args.target), begin, end);
  };
  return args.bf16 ? with(static_cast<const Bf16*>(args.prediction)) : with(static_cast<const float*>(args.prediction));
}

void squared_error_grad(const MseArgs& args, std::int64_t begin, std::int64_t end) {
  const auto with = [&](const auto* p, auto* dp) {
    return args.target_bf16
               ? squared_error_grad_of(p, static_cast<const Bf16*>(args.target), dp, args.seed, begin, end)
               : squared_error_grad_of(p, static_cast<const float*>(args.target), dp, args.seed, begin, end);
  };
  if (args.bf16) return with(static_cast<const Bf16*>(args.prediction), static_cast<Bf16*>(args.dprediction));
  return with(static_cast<const float*>(args.prediction), static_cast<float*>(args.dprediction));
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
