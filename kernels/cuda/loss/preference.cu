// The ops on pairs of sequences: a few numbers of each row or sequence. sequence_nll reads 20 bytes of each row and
// part of the classes: a block for each sequence. The others read a pair's targets, usually only the first of them that
// counts: one block, a thread for each pair, whose figures are summed in an order that the number of pairs fixes.
#include <cmath>

#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"
#include "kernels/cuda/runtime/fault.cuh"
#include "kernels/preference.h"

#include "engine/core/op_record.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kStats = 5, kFigures = 5;

// ---- Device ----

__global__ void __launch_bounds__(kThreads)
    sequence_nll(const SequenceNllSizes sizes, const float* stats, const std::int32_t* targets, double* nll, float* lse,
                 Fault* fault) {
  __shared__ double shared[kThreads / kWarp];
  const std::int64_t length = sizes.rows / sizes.sequences, first = blockIdx.x * length;
  double sum = 0;
  for (std::int64_t row = first + threadIdx.x; row < first + length; row += kThreads) {
    const auto part = [&](std::int64_t p) { return stats + (p * sizes.rows + row) * kStats; };
    float most = -INFINITY;
    for (std::int64_t p = 0; p < sizes.parts; ++p) most = fmaxf(most, part(p)[0]);
    double total = 0, at_target = 0;
    for (std::int64_t p = 0; p < sizes.parts; ++p) {
      total += static_cast<double>(part(p)[1]) * exp(static_cast<double>(part(p)[0]) - static_cast<double>(most));
      at_target += static_cast<double>(part(p)[2]);  // of one part alone it is not 0
    }
    const double whole = static_cast<double>(most) + log(total);
    const int id = targets[row];
    lse[row] = static_cast<float>(whole);
    if (id == sizes.ignore_index) continue;
    const bool wrong = id < 0 || id >= sizes.classes;
    if (wrong) report(fault, Fault::target, id, row, static_cast<int>(sizes.classes));
    sum += wrong ? static_cast<double>(NAN) : whole - at_target;
  }
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) nll[blockIdx.x] = sum;
}

__device__ __forceinline__ bool counts(const PairSizes& sizes, const std::int32_t* targets, std::int64_t pair) {
  const std::int32_t* const ids = targets + 2 * pair * sizes.length;
  for (std::int64_t i = 0; i < 2 * sizes.length; ++i)
    if (ids[i] != sizes.ignore_index) return true;
  return false;
}

struct Rewards {
  double chosen, rejected;
};
__device__ __forceinline__ Rewards rewards_of(const PairSizes& sizes, const double* policy, const double* reference,
                                              std::int64_t pair) {
  return {sizes.beta * (reference[2 * pair] - policy[2 * pair]),
          sizes.beta * (reference[2 * pair + 1] - policy[2 * pair + 1])};
}

__device__ __forceinline__ double minus_log_sigmoid(double x) { return x > 0 ? log1p(exp(-x)) : log1p(exp(x)) - x; }

__global__ void __launch_bounds__(kThreads)
    dpo_loss(const PairSizes sizes, const double* policy, const double* reference, const std::int32_t* targets,
             double* loss, double* figures, bool accumulate) {
  __shared__ double shared[kFigures][kThreads / kWarp];
  double mine[kFigures] = {0, 0, 0, 0, 0};
  for (std::int64_t pair = threadIdx.x; pair < sizes.pairs; pair += kThreads) {
    if (!counts(sizes, targets, pair)) continue;
    const Rewards rewards = rewards_of(sizes, policy, reference, pair);
    mine[0] += minus_log_sigmoid(rewards.chosen - rewards.rejected);
    mine[1] += rewards.chosen;
    mine[2] += rewards.rejected;
    mine[3] += rewards.chosen > rewards.rejected ? 1 : 0;
    mine[4] += 1;
  }
#pragma unroll
  for (int i = 0; i < kFigures; ++i) {
    const double all = block_sum<kThreads>(mine[i], shared[i]);
    double* const to = i == 0 ? loss : figures + (i - 1);
    if (threadIdx.x == 0) *to = accumulate ? *to + all : all;
  }
}

__global__ void __launch_bounds__(kThreads)
    dpo_loss_grad(const PairSizes sizes, const double* policy, const double* reference, const std::int32_t* targets,
                  const float* seed, float* dpolicy) {
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pair >= sizes.pairs) return;
  const Rewards rewards = rewards_of(sizes, policy, reference, pair);
  const double slope = counts(sizes, targets, pair)
                           ? static_cast<double>(*seed) * sizes.beta / (1 + exp(rewards.chosen - rewards.rejected))
                           : 0.0;
  dpolicy[2 * pair] = static_cast<float>(slope);
  dpolicy[2 * pair + 1] = static_cast<float>(-slope);
}

__global__ void __launch_bounds__(kThreads)
    dpo_count(const PairSizes sizes, const std::int32_t* targets, double* count, bool accumulate) {
  __shared__ double shared[kThreads / kWarp];
  double mine = 0;
  for (std::int64_t pair = threadIdx.x; pair < sizes.pairs; pair += kThreads) mine += counts(sizes, targets, pair);
  const double all = block_sum<kThreads>(mine, shared);
  if (threadIdx.x == 0) *count = accumulate ? *count + all : all;
}

}  // namespace

// ---- Host ----

Prepared prepare_sequence_nll(const Signature& signature, const Context& context) {
  const SequenceNllSizes sizes = sequence_nll_sizes(signature);
  CHECK(sizes.sequences < std::int64_t{1} << 31, describe(signature) + ": sequences are counted in 32 bits");
  Fault* const fault = context.fault;
  const Grid grid{.blocks = static_cast<unsigned>(sizes.sequences), .threads = kThreads};
  return make_kernel([=](const Call& call) {
    launch(call, grid, sequence_nll, sizes, operand<float>(call, 1), operand<std::int32_t>(call, 2),
           operand<double>(call, 3), operand<float>(call, 4), fault);
  });
}

Prepared prepare_dpo_loss(const Signature& signature, const Context&) {
  const PairSizes sizes = pair_sizes(signature);
  const bool accumulate = accumulates(signature);
  return make_kernel([=](const Call& call) {
    launch(call, Grid{.threads = kThreads}, dpo_loss, sizes, operand<double>(call, 0), operand<double>(call, 1),
           operand<std::int32_t>(call, 2), operand<double>(call, 3), operand<double>(call, 4), accumulate);
  });
}

Prepared prepare_dpo_loss_grad(const Signature& signature, const Context&) {
  const PairSizes sizes = pair_sizes(signature);
  const Grid grid{.blocks = blocks_for(sizes.pairs, kThreads), .threads = kThreads};
  return make_kernel([=](const Call& call) {
    launch(call, grid, dpo_loss_grad, sizes, operand<double>(call, 0), operand<double>(call, 1),
           operand<std::int32_t>(call, 2), operand<float>(call, 3), operand<float>(call, 4));
  });
}

Prepared prepare_dpo_count(const Signature& signature, const Context&) {
  const PairSizes sizes = pair_sizes(signature);
  const bool accumulate = accumulates(signature);
  return make_kernel([=](const Call& call) {
    launch(call, Grid{.threads = kThreads}, dpo_count, sizes, operand<std::int32_t>(call, 0), operand<double>(call, 1),
           accumulate);
  });
}

}  // namespace trainer::kernels::cuda
