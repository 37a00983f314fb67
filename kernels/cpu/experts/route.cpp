// What a router does behind its logits, and weigh and row_dots. A router is a small part of the work of its experts, so
// scores are plain f64: which experts are chosen then depends on the logits alone, on no instruction set.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "engine/core/op_record.h"
#include "kernels/bf16.h"
#include "kernels/cpu/experts/balance.h"
#include "kernels/cpu/experts/weigh_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"
#include "kernels/experts.h"

namespace trainer::kernels::cpu {
namespace {

constexpr double kTiny = 1e-20;  // of DeepSeek's normalisation

struct Router {
  std::int64_t batch = 0, seq = 0, experts = 0, k = 0;
  bool bf16 = false, sigmoid = false, normalize = true, biased = false;
  double scale = 1, aux = 0, z = 0;
  std::int64_t groups = 1, top_groups = 1;

  std::int64_t tokens() const { return batch * seq; }
  double logit(const void* logits, std::int64_t at) const {
    return bf16 ? to_f32(static_cast<const Bf16*>(logits)[at]) : static_cast<const float*>(logits)[at];
  }
  int threads(const Context& c) const { return threads_for(tokens() * experts * 32, c.threads); }  // an exp is slow
};

Router router_of(const Signature& s, int logits, int choices) {
  const auto& of = [&](int i) -> const Shape& { return s.operands[static_cast<std::size_t>(i)].shape; };
  CHECK(of(logits).rank() == of(choices).rank() && (of(logits).rank() == 3 || of(logits).rank() == 2),
        describe(s) + ": [batch, seq, experts] and [batch, seq, k], or rows of these");
  Router r;
  const bool samples = of(logits).rank() == 3;
  r.batch = samples ? of(logits)[0] : 1, r.seq = of(logits)[-2], r.experts = of(logits)[-1], r.k = of(choices)[-1];
  expect_operand(s, choices, DType::i32, r.tokens() * r.k);
  r.bf16 = expect_compute_dtype(s, logits);
  r.sigmoid = text(s, "score") == "sigmoid";
  return r;
}

/// The scores of a token in `s`; returns log Σ exp of its logits.
double scores_of(const Router& r, const void* logits, std::int64_t token, std::span<double> s) {
  double most = -INFINITY, sum = 0;
  for (std::int64_t e = 0; e < r.experts; ++e) {
    s[static_cast<std::size_t>(e)] = r.logit(logits, token * r.experts + e);
    most = std::fmax(most, s[static_cast<std::size_t>(e)]);
  }
  for (const double x : s) sum += std::exp(x - most);
  for (double& x : s) x = r.sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x - most) / sum;
  return most + std::log(sum);
}

/// Leaves -inf in `by` of all experts whose group is none of the best.
void limit_groups(const Router& r, std::span<double> by, std::span<double> best) {
  const std::int64_t size = r.experts / r.groups;
  for (std::int64_t g = 0; g < r.groups; ++g) {
    double first = -INFINITY, second = -INFINITY;
    for (const double x : by.subspan(static_cast<std::size_t>(g * size), static_cast<std::size_t>(size))) {
      second = std::fmax(second, std::fmin(first, x));
      first = std::fmax(first, x);
    }
    best[static_cast<std::size_t>(g)] = first + second;
  }
  for (std::int64_t g = 0; g < r.groups; ++g) {
    std::int64_t better = 0;
    for (std::int64_t other = 0; other < r.groups; ++other) {
      const double mine = best[static_cast<std::size_t>(g)], theirs = best[static_cast<std::size_t>(other)];
      better += theirs > mine || (theirs == mine && other < g) ? 1 : 0;
    }
    if (better >= r.top_groups)
      std::ranges::fill(by.subspan(static_cast<std::size_t>(g * size), static_cast<std::size_t>(size)), -INFINITY);
  }
}

/// The k largest of `by`, which it changes.
void choose(const Router& r, std::span<double> by, std::int32_t* choices) {
  std::vector<char> taken(by.size(), 0);
  for (std::int64_t j = 0; j < r.k; ++j) {
    std::size_t best = by.size();
    for (std::size_t e = 0; e < by.size(); ++e)
      if (taken[e] == 0 && (best == by.size() || by[e] > by[best])) best = e;
    taken[best] = 1;
    choices[j] = static_cast<std::int32_t>(best);
  }
}

void route_token(const Router& r, const Call& call, std::int64_t token, std::span<double> s, std::span<double> by,
                 std::span<double> groups) {
  scores_of(r, operand<void>(call, 0), token, s);
  const float* const bias = r.biased ? operand<float>(call, 1) : nullptr;
  for (std::size_t e = 0; e < s.size(); ++e) by[e] = s[e] + (bias == nullptr ? 0.0 : static_cast<double>(bias[e]));
  if (r.groups > 1) limit_groups(r, by, groups);
  float* const weights = operand<float>(call, r.biased ? 2 : 1) + token * r.k;
  std::int32_t* const choices = operand<std::int32_t>(call, r.biased ? 3 : 2) + token * r.k;
  choose(r, by, choices);
  double sum = kTiny;
  for (std::int64_t j = 0; j < r.k; ++j) sum += s[static_cast<std::size_t>(choices[j])];
  for (std::int64_t j = 0; j < r.k; ++j)
    weights[j] = static_cast<float>(r.scale * s[static_cast<std::size_t>(choices[j])] / (r.normalize ? sum : 1.0));
}

/// Slopes of the losses of a sample with respect to each expert's share of a token's scores, and to log Σ exp.
struct LossSlopes {
  std::vector<double> share{};
  double z = 0;
};

LossSlopes loss_slopes(const Router& r, const std::int32_t* choices, double seed) {
  LossSlopes slopes{std::vector<double>(static_cast<std::size_t>(r.experts), 0.0)};
  for (std::int64_t i = 0; i < r.seq * r.k; ++i) slopes.share[static_cast<std::size_t>(choices[i])] += 1;
  const auto seq = static_cast<double>(r.seq);
  for (double& x : slopes.share)
    x *= seed * r.aux * static_cast<double>(r.experts) / (seq * static_cast<double>(r.k)) / seq;
  slopes.z = 2 * seed * r.z / seq;
  return slopes;
}

/// d of a token's logits, in `ds`. `s` are its scores.
void slopes_of_logits(const Router& r, std::span<const double> s, const float* dweights, const std::int32_t* choices,
                      const LossSlopes* losses, double lse, const void* logits, std::int64_t token,
                      std::span<double> ds) {
  std::ranges::fill(ds, 0.0);
  double sum = kTiny, dot = 0;
  for (std::int64_t j = 0; j < r.k; ++j) {
    sum += s[static_cast<std::size_t>(choices[j])];
    dot += s[static_cast<std::size_t>(choices[j])] * static_cast<double>(dweights[j]);
  }
  for (std::int64_t j = 0; j < r.k; ++j)
    ds[static_cast<std::size_t>(choices[j])] +=
        r.scale *
        (r.normalize ? static_cast<double>(dweights[j]) / sum - dot / (sum * sum) : static_cast<double>(dweights[j]));
  if (losses != nullptr) {  // of shares s / Σ s
    double all = 0, mean = 0;
    for (std::size_t e = 0; e < s.size(); ++e) all += s[e];
    for (std::size_t e = 0; e < s.size(); ++e) mean += losses->share[e] * s[e] / all;
    for (std::size_t e = 0; e < s.size(); ++e) ds[e] += (losses->share[e] - mean) / all;
  }
  double mean = 0;
  if (!r.sigmoid)
    for (std::size_t e = 0; e < s.size(); ++e) mean += ds[e] * s[e];
  for (std::size_t e = 0; e < s.size(); ++e) {
    ds[e] = r.sigmoid ? ds[e] * s[e] * (1 - s[e]) : s[e] * (ds[e] - mean);
    if (losses != nullptr && losses->z != 0)
      ds[e] += losses->z * lse * std::exp(r.logit(logits, token * r.experts + static_cast<std::int64_t>(e)) - lse);
  }
}

}  // namespace

Prepared prepare_route(const Signature& s, const Context& c) {
  const bool biased = flag(s, "biased");
  expect_operands(s, biased ? 4 : 3);
  Router r = router_of(s, 0, biased ? 3 : 2);
  expect_operand(s, biased ? 2 : 1, DType::f32, r.tokens() * r.k);
  if (biased) expect_operand(s, 1, DType::f32, r.experts);
  r.biased = biased;
  r.normalize = flag(s, "normalize");
  r.scale = real(s, "scale");
  r.groups = integer(s, "groups"), r.top_groups = integer(s, "top_groups");
  CHECK(r.k <= r.experts && r.experts % r.groups == 0, describe(s) + ": at most as many choices as experts");
  return make_kernel([r, threads = r.threads(c)](const Call& call) {
    parallel_ranges(r.tokens(), 1, threads, [&](std::int64_t begin, std::int64_t end) {
      std::vector<double> scores(static_cast<std::size_t>(r.experts)), by(scores),
          groups(static_cast<std::size_t>(r.groups));
      for (std::int64_t token = begin; token < end; ++token) route_token(r, call, token, scores, by, groups);
    });
  });
}

Prepared prepare_route_grad(const Signature& s, const Context& c) {
  const bool losses = flag(s, "losses");
  expect_operands(s, losses ? 5 : 4);
  Router r = router_of(s, 1, 2);
  expect_operand(s, 0, DType::f32, r.tokens() * r.k);
  expect_shape(s, losses ? 4 : 3, s.operands[1].dtype, s.operands[1].shape);
  r.normalize = flag(s, "normalize");
  r.scale = real(s, "scale"), r.aux = real(s, "aux"), r.z = real(s, "z");
  return make_kernel([r, losses, threads = r.threads(c)](const Call& call) {
    const float* const dweights = operand<float>(call, 0);
    const void* const logits = operand<void>(call, 1);
    const std::int32_t* const choices = operand<std::int32_t>(call, 2);
    void* const dlogits = operand<void>(call, losses ? 4 : 3);
    const double seed = losses ? static_cast<double>(*operand<float>(call, 3)) : 0;
    parallel_ranges(r.tokens(), 1, threads, [&](std::int64_t begin, std::int64_t end) {
      std::vector<double> scores(static_cast<std::size_t>(r.experts)), slopes(scores);
      LossSlopes of_sample;
      for (std::int64_t token = begin; token < end; ++token) {
        if (losses && (token == begin || token % r.seq == 0))
          of_sample = loss_slopes(r, choices + token / r.seq * r.seq * r.k, seed);
        const double lse = scores_of(r, logits, token, scores);
        slopes_of_logits(r, scores, dweights + token * r.k, choices + token * r.k, losses ? &of_sample : nullptr, lse,
                         logits, token, slopes);
        for (std::int64_t e = 0; e < r.experts; ++e) {
          const auto value = static_cast<float>(slopes[static_cast<std::size_t>(e)]);
          if (r.bf16)
            static_cast<Bf16*>(dlogits)[token * r.experts + e] = to_bf16(value);
          else
            static_cast<float*>(dlogits)[token * r.experts + e] = value;
        }
      }
    });
  });
}

Prepared prepare_expert_capacity(const Signature& s, const Context&) {
  expect_operands(s, 2);
  const Shape& shape = s.operands[0].shape;
  expect_shape(s, 0, DType::i32, shape);
  expect_shape(s, 1, DType::i32, shape);
  CHECK(shape.rank() == 3, describe(s) + ": [batch, seq, k]");
  return make_kernel([=, experts = integer(s, "experts"), capacity = integer(s, "capacity")](const Call& call) {
    const std::int64_t seq = shape[1], k = shape[2];
    std::vector<std::int64_t> count(static_cast<std::size_t>(experts));
    for (std::int64_t sample = 0; sample < shape[0]; ++sample) {
      const std::int32_t* const choices = operand<std::int32_t>(call, 0) + sample * seq * k;
      std::int32_t* const kept = operand<std::int32_t>(call, 1) + sample * seq * k;
      std::ranges::fill(count, 0);
      for (std::int64_t j = 0; j < k; ++j)
        for (std::int64_t t = 0; t < seq; ++t) {
          const std::int32_t e = choices[t * k + j];
          kept[t * k + j] = ++count[static_cast<std::size_t>(e)] <= capacity ? e : -1;
        }
    }
  });
}

std::int64_t router_losses_workspace(const Signature& s) {
  if (flag(s, "counts") || flag(s, "balance")) return 0;
  return s.operands[0].shape[0] * 2 * std::int64_t{sizeof(double)};
}

// Samples in parallel, each with its two sums in the workspace.
Prepared prepare_router_losses(const Signature& s, const Context& c) {
  if (flag(s, "counts")) return count_choices(s);
  if (flag(s, "balance")) return move_bias(s);
  const bool capacity = flag(s, "capacity");
  expect_operands(s, capacity ? 4 : 3);
  Router r = router_of(s, 0, 1);
  r.aux = real(s, "aux"), r.z = real(s, "z");
  if (capacity) expect_operand(s, 2, DType::i32, r.tokens() * r.k);
  expect_operand(s, capacity ? 3 : 2, DType::f64, 2);
  return make_kernel([r, capacity, threads = r.threads(c)](const Call& call) {
    const std::int32_t *const choices = operand<std::int32_t>(call, 1), *const kept =
                                                                            capacity ? operand<std::int32_t>(call, 2)
                                                                                     : nullptr;
    auto* const sums = static_cast<double*>(call.workspace);
    parallel_ranges(r.batch, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      std::vector<double> scores(static_cast<std::size_t>(r.experts)), shares(scores);
      for (std::int64_t sample = begin; sample < end; ++sample) {
        std::ranges::fill(shares, 0.0);
        double squares = 0, aux = 0, left_out = 0;
        for (std::int64_t t = sample * r.seq; t < (sample + 1) * r.seq; ++t) {
          const double lse = scores_of(r, operand<void>(call, 0), t, scores);
          squares += lse * lse;
          double all = 0;
          for (const double x : scores) all += x;
          for (std::size_t e = 0; e < scores.size(); ++e) shares[e] += scores[e] / all;
        }
        for (std::int64_t i = sample * r.seq * r.k; i < (sample + 1) * r.seq * r.k; ++i) {
          aux += shares[static_cast<std::size_t>(choices[i])];
          left_out += kept != nullptr && kept[i] < 0 ? 1 : 0;
        }
        const auto seq = static_cast<double>(r.seq);
        sums[2 * sample] =
            r.aux * static_cast<double>(r.experts) * aux / (seq * seq * static_cast<double>(r.k)) + r.z * squares / seq;
        sums[2 * sample + 1] = left_out;
      }
    });
    auto* const total = operand<double>(call, capacity ? 3 : 2);
    for (std::int64_t i = 0; i < 2 * r.batch; ++i) total[i % 2] += sums[i];
  });
}

Prepared prepare_weigh(const Signature& s, const Context& c) {
  expect_operands(s, 3);
  expect_alike(s, {0, 2});
  const std::int64_t rows = s.operands[0].shape.rows(), columns = s.operands[0].shape[-1];
  expect_operand(s, 1, DType::f32, rows);
  const bool bf16 = expect_compute_dtype(s, 0);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(c.isa, weigh_rows);
  return make_kernel([=, threads = threads_for(2 * s.operands[0].bytes(), c.threads)](const Call& call) {
    parallel_ranges(rows, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(bf16, operand<void>(call, 0), operand<float>(call, 1), operand<void>(call, 2), columns, begin, end);
    });
  });
}

Prepared prepare_row_dots(const Signature& s, const Context& c) {
  expect_operands(s, 3);
  expect_alike(s, {0, 1});
  const std::int64_t rows = s.operands[0].shape.rows(), columns = s.operands[0].shape[-1];
  expect_operand(s, 2, DType::f32, rows);
  const bool bf16 = expect_compute_dtype(s, 0);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(c.isa, dot_rows);
  return make_kernel([=, threads = threads_for(2 * s.operands[0].bytes(), c.threads)](const Call& call) {
    parallel_ranges(rows, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(bf16, operand<void>(call, 0), operand<void>(call, 1), operand<float>(call, 2), columns, begin, end);
    });
  });
}

}  // namespace trainer::kernels::cpu
