// The ops on pairs of sequences: a few numbers of each row or sequence, in f64 and in order.
#include "kernels/preference.h"

#include <cmath>

#include "engine/core/op_record.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"
#include "kernels/loss.h"

namespace trainer::kernels::cpu {
namespace {

constexpr int kStats = 5;  // numbers of a row of cross_entropy_stats

/// What a row's statistics say of it, by all parts of the classes.
struct RowSums {
  double lse = 0, at_target = 0;
};

RowSums joined(const float* stats, const SequenceNllSizes& sizes, std::int64_t row) {
  const auto part = [&](std::int64_t p) { return stats + (p * sizes.rows + row) * kStats; };
  float most = -INFINITY;
  for (std::int64_t p = 0; p < sizes.parts; ++p) most = std::fmax(most, part(p)[0]);
  RowSums sums;
  double total = 0;
  for (std::int64_t p = 0; p < sizes.parts; ++p) {
    total += static_cast<double>(part(p)[1]) * std::exp(static_cast<double>(part(p)[0]) - most);
    sums.at_target += part(p)[2];  // of one part alone it is not 0
  }
  sums.lse = most + std::log(total);
  return sums;
}

/// A pair's rewards, and whether it has a target.
struct Rewards {
  bool counts = false;
  double chosen = 0, rejected = 0;
};

Rewards rewards_of(const PairSizes& sizes, const Call& call, int targets, std::int64_t pair) {
  const std::int32_t* ids = operand<std::int32_t>(call, targets) + 2 * pair * sizes.length;
  Rewards rewards;
  for (std::int64_t i = 0; i < 2 * sizes.length && !rewards.counts; ++i) rewards.counts = ids[i] != sizes.ignore_index;
  if (targets == 0) return rewards;
  const double *policy = operand<double>(call, 0) + 2 * pair, *reference = operand<double>(call, 1) + 2 * pair;
  rewards.chosen = sizes.beta * (reference[0] - policy[0]);
  rewards.rejected = sizes.beta * (reference[1] - policy[1]);
  return rewards;
}

/// −ln σ(x), without overflow.
double minus_log_sigmoid(double x) { return x > 0 ? std::log1p(std::exp(-x)) : std::log1p(std::exp(x)) - x; }

void put(double* output, double value, bool accumulate) { *output = accumulate ? *output + value : value; }

}  // namespace

Prepared prepare_sequence_nll(const Signature& signature, const Context& context) {
  const SequenceNllSizes sizes = sequence_nll_sizes(signature);
  const int threads = threads_for(signature.operands[1].bytes(), context.threads);
  return make_kernel([=](const Call& call) {
    const std::int32_t* targets = operand<std::int32_t>(call, 2);
    check_targets({targets, static_cast<std::size_t>(sizes.rows)}, sizes.classes, sizes.ignore_index);
    const auto* stats = operand<float>(call, 1);
    auto* nll = operand<double>(call, 3);
    auto* lse = operand<float>(call, 4);
    const std::int64_t length = sizes.rows / sizes.sequences;
    parallel_ranges(sizes.sequences, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t sequence = begin; sequence < end; ++sequence) {
        double sum = 0;
        for (std::int64_t row = sequence * length; row < (sequence + 1) * length; ++row) {
          const RowSums sums = joined(stats, sizes, row);
          lse[row] = static_cast<float>(sums.lse);
          if (targets[row] != sizes.ignore_index) sum += sums.lse - sums.at_target;
        }
        nll[sequence] = sum;
      }
    });
  });
}

Prepared prepare_dpo_loss(const Signature& signature, const Context&) {
  const PairSizes sizes = pair_sizes(signature);
  const bool accumulate = accumulates(signature);
  return make_kernel([=](const Call& call) {
    double loss = 0, figures[4] = {0, 0, 0, 0};
    for (std::int64_t pair = 0; pair < sizes.pairs; ++pair) {
      const Rewards rewards = rewards_of(sizes, call, 2, pair);
      if (!rewards.counts) continue;
      loss += minus_log_sigmoid(rewards.chosen - rewards.rejected);
      figures[0] += rewards.chosen;
      figures[1] += rewards.rejected;
      figures[2] += rewards.chosen > rewards.rejected ? 1 : 0;
      figures[3] += 1;
    }
    put(operand<double>(call, 3), loss, accumulate);
    for (int i = 0; i < 4; ++i) put(operand<double>(call, 4) + i, figures[i], accumulate);
  });
}

Prepared prepare_dpo_loss_grad(const Signature& signature, const Context&) {
  const PairSizes sizes = pair_sizes(signature);
  return make_kernel([=](const Call& call) {
    const double scale = static_cast<double>(*operand<float>(call, 3)) * sizes.beta;
    auto* dpolicy = operand<float>(call, 4);
    for (std::int64_t pair = 0; pair < sizes.pairs; ++pair) {
      const Rewards rewards = rewards_of(sizes, call, 2, pair);
      const double slope = rewards.counts ? scale / (1 + std::exp(rewards.chosen - rewards.rejected)) : 0.0;
      dpolicy[2 * pair] = static_cast<float>(slope);
      dpolicy[2 * pair + 1] = static_cast<float>(-slope);
    }
  });
}

Prepared prepare_dpo_count(const Signature& signature, const Context&) {
  const PairSizes sizes = pair_sizes(signature);
  const bool accumulate = accumulates(signature);
  return make_kernel([=](const Call& call) {
    std::int64_t count = 0;
    for (std::int64_t pair = 0; pair < sizes.pairs; ++pair) count += rewards_of(sizes, call, 0, pair).counts ? 1 : 0;
    put(operand<double>(call, 1), static_cast<double>(count), accumulate);
  });
}

}  // namespace trainer::kernels::cpu
