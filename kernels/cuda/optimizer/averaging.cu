// What local SGD does to flat tensors. One pass over memory each, 16 bytes a thread at a time: outer_step moves 24
// bytes for each element, apply_delayed 16, outer_gradient 12.
#include "kernels/averaging.h"

#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kN = kVector<float>;

// ---- Device ----

/// each(i) for the elements of this thread: a vector's, fewer at the end.
template <typename Vector, typename Element>
__device__ __forceinline__ void for_my_elements(std::int64_t count, Vector vector, Element element) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at * kN + kN <= count) return vector(at);
  for (std::int64_t i = at * kN; i < count; ++i) element(i);
}

struct Outer {
  float factor, lr, mu;
  bool nesterov;
  /// The anchor moved; `momentum` is updated.
  __device__ __forceinline__ float operator()(float anchor, float& momentum, float gradient) const {
    const float delta = factor * gradient;
    momentum = fmaf(mu, momentum, delta);
    return fmaf(-lr, nesterov ? fmaf(mu, momentum, delta) : momentum, anchor);
  }
};

// gradient may be master.
__global__ void __launch_bounds__(kThreads)
    subtract(const float* anchor, const float* master, float* gradient, std::int64_t count) {
  for_my_elements(
      count,
      [&](std::int64_t at) {
        Vec<float, kN> way = load<kN>(anchor, at);
        const Vec<float, kN> now = load<kN>(master, at);
#pragma unroll
        for (int i = 0; i < kN; ++i) way[i] -= now[i];
        store(gradient, at, way);
      },
      [&](std::int64_t i) { gradient[i] = anchor[i] - master[i]; });
}

// master may be gradient.
__global__ void __launch_bounds__(kThreads) step_outwards(float* anchor, float* momentum, const float* gradient,
                                                          float* master, Outer outer, std::int64_t count) {
  for_my_elements(
      count,
      [&](std::int64_t at) {
        Vec<float, kN> a = load<kN>(anchor, at), m = load<kN>(momentum, at);
        const Vec<float, kN> sum = load<kN>(gradient, at);
#pragma unroll
        for (int i = 0; i < kN; ++i) a[i] = outer(a[i], m[i], sum[i]);
        store(momentum, at, m);
        store(anchor, at, a);
        store(master, at, a);
      },
      [&](std::int64_t i) { anchor[i] = master[i] = outer(anchor[i], momentum[i], gradient[i]); });
}

__global__ void __launch_bounds__(kThreads)
    replace_delayed(float* master, const float* snapshot, const float* average, float factor, std::int64_t count) {
  for_my_elements(
      count,
      [&](std::int64_t at) {
        Vec<float, kN> w = load<kN>(master, at);
        const Vec<float, kN> before = load<kN>(snapshot, at), mean = load<kN>(average, at);
#pragma unroll
        for (int i = 0; i < kN; ++i) w[i] += fmaf(factor, mean[i], -before[i]);
        store(master, at, w);
      },
      [&](std::int64_t i) { master[i] += fmaf(factor, average[i], -snapshot[i]); });
}

// ---- Host ----

float factor_of(const Signature& signature) { return static_cast<float>(real(signature, "factor")); }

Grid grid_for(std::int64_t count) { return {.blocks = blocks_for(count, kThreads * kN), .threads = kThreads}; }

}  // namespace

Prepared prepare_outer_gradient(const Signature& signature, const Context&) {
  const std::int64_t count = expect_flat(signature, 3);
  return make_kernel([count](const Call& call) {
    launch(call, grid_for(count), subtract, operand<float>(call, 0), operand<float>(call, 1), operand<float>(call, 2),
           count);
  });
}

Prepared prepare_outer_step(const Signature& signature, const Context&) {
  const std::int64_t count = expect_flat(signature, 4);
  const Outer outer{factor_of(signature), static_cast<float>(real(signature, "lr")),
                    static_cast<float>(real(signature, "momentum")), flag(signature, "nesterov")};
  return make_kernel([count, outer](const Call& call) {
    launch(call, grid_for(count), step_outwards, operand<float>(call, 0), operand<float>(call, 1),
           operand<float>(call, 2), operand<float>(call, 3), outer, count);
  });
}

Prepared prepare_apply_delayed(const Signature& signature, const Context&) {
  const std::int64_t count = expect_flat(signature, 3);
  return make_kernel([count, factor = factor_of(signature)](const Call& call) {
    launch(call, grid_for(count), replace_delayed, operand<float>(call, 0), operand<float>(call, 1),
           operand<float>(call, 2), factor, count);
  });
}

}  // namespace trainer::kernels::cuda
