// What balances experts by a bias: counting choices, and moving the bias once a step. One block does either: a
// micro-batch has some ten thousand choices. Counts are whole numbers, so that no order of additions matters.
#include "kernels/cuda/experts/balance.h"

#include "engine/core/op_record.h"
#include "kernels/cuda/runtime/device.cuh"
#include "kernels/experts.h"
#include "kernels/optimizer.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr std::int64_t kMostExperts = 1024;

// ---- Device ----

__global__ void __launch_bounds__(kThreads)
    count_experts(const std::int32_t* choices, std::int64_t count, int experts, double* counts) {
  auto* const here = dynamic_shared<int>();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) here[e] = 0;
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads)
    if (choices[i] >= 0) atomicAdd(&here[choices[i]], 1);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) counts[e] += here[e];
}

__global__ void __launch_bounds__(kThreads)
    move_each(const double* counts, int experts, const Scalars* scalars, float rate, float* bias) {
  if (scalars->factor == 0) return;
  double sum = 0;
  for (int e = 0; e < experts; ++e) sum += counts[e];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) {
    const double excess = counts[e] * experts - sum;
    if (excess != 0) bias[e] -= excess > 0 ? rate : -rate;
  }
}

}  // namespace

// ---- Host ----

Prepared count_choices(const Signature& s) {
  const auto [choices, experts] = count_sizes(s);
  CHECK(experts <= kMostExperts, describe(s) + ": at most 1024 experts");
  const Grid grid{.blocks = 1, .threads = kThreads, .shared_bytes = static_cast<std::size_t>(experts) * sizeof(int)};
  return make_kernel([=, choices = choices, experts = static_cast<int>(experts)](const Call& call) {
    launch(call, grid, count_experts, operand<std::int32_t>(call, 1), choices, experts, operand<double>(call, 2));
  });
}

Prepared move_bias(const Signature& s) {
  const std::int64_t experts = balanced_experts(s);
  return make_kernel(
      [experts = static_cast<int>(experts), rate = static_cast<float>(real(s, "rate"))](const Call& call) {
        launch(call, {.blocks = 1, .threads = kThreads}, move_each, operand<double>(call, 0), experts,
               operand<Scalars>(call, 1), rate, operand<float>(call, 2));
      });
}

}  // namespace trainer::kernels::cuda
