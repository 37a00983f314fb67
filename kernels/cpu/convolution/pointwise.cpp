// The products of samples, one after the other, each on all threads.
#include "kernels/cpu/convolution/pointwise.h"

#include <cstddef>

#include "kernels/cpu/convolution/rounded.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu::pointwise {
namespace {

using gemm::Order;
using gemm::Problem;

/// The product of a sample, but for where its operands lie.
Problem problem_of(const Convolution& c, Pass pass) {
  const std::int64_t places = c.places();
  Problem p;
  p.inputs_are_f32 = p.c_is_f32 = c.dtype == DType::f32;
  switch (pass) {
    case Pass::forward:
      p.m = c.out, p.k = c.in, p.n = places;
      p.lda = c.in, p.ldb = places;
      p.b_order = Order::rows;
      break;
    case Pass::grad_input:
      p.m = c.in, p.k = c.out, p.n = places;
      p.lda = c.in, p.ldb = places;
      p.a_order = Order::columns, p.b_order = Order::rows;
      break;
    case Pass::grad_weight:
      p.m = c.out, p.k = places, p.n = c.in;
      p.lda = places, p.ldb = places;
      p.b_order = Order::columns;
      p.c_is_f32 = true;  // sums of samples
      break;
  }
  p.ldc = p.n;
  return p;
}

/// Of the workspace, for a sum over samples that is rounded once or added to what there is; 0: the result holds it.
std::int64_t sums_bytes(const Convolution& c, Pass pass) {
  const bool apart = pass == Pass::grad_weight && (c.accumulate || c.parameter_gradients != DType::f32);
  return apart ? gemm::round_up(c.out * c.in * 4, 64) : 0;
}

void finish(const Convolution& c, int threads, const float* sums, void* dweight) {
  const auto each = [&](auto* to) {
    parallel_ranges(c.out * c.in, 64, threads_for(c.out * c.in * 4, threads),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t i = begin; i < end; ++i)
                        to[i] = rounded_as(sums[i] + (c.accumulate ? to_f32(to[i]) : 0.0F), to);
                    });
  };
  c.parameter_gradients == DType::f32 ? each(static_cast<float*>(dweight)) : each(static_cast<Bf16*>(dweight));
}

}  // namespace

// Measured with ResNet-50, on AVX-512 and AMX: faster over 28 × 28 places, slower over 14 × 14, where a product for
// each sample is too small.
bool is_faster(const Convolution& c) {
  constexpr std::int64_t kManyPlaces = 512;
  const bool plain = c.window() == 1 && c.stride == 1 && c.padding == 0 && c.padding_rows == 0 && !c.bias;
  return plain && c.places() >= kManyPlaces;
}

std::int64_t workspace_bytes(const Convolution& c, Pass pass, int threads) {
  const Problem p = problem_of(c, pass);
  return sums_bytes(c, pass) + gemm::workspace_bytes(p, gemm::method_for(p, c.isa), c.isa, threads);
}

void run(const Convolution& c, Pass pass, int threads, std::span<void* const> operands, void* workspace) {
  Problem p = problem_of(c, pass);
  const auto bytes = static_cast<std::int64_t>(size_of(c.dtype));
  const std::int64_t apart = sums_bytes(c, pass);
  void* const sums = apart > 0 ? workspace : operands[2];
  void* const scratch = static_cast<std::byte*>(workspace) + apart;
  const auto sample = [&](int operand, std::int64_t n, std::int64_t channels) -> void* {
    return static_cast<std::byte*>(operands[static_cast<std::size_t>(operand)]) + n * channels * c.places() * bytes;
  };
  for (std::int64_t n = 0; n < c.n; ++n) {
    switch (pass) {
      case Pass::forward:
        p.a = operands[1], p.b = sample(0, n, c.in), p.c = sample(2, n, c.out);
        break;
      case Pass::grad_input:
        p.a = operands[1], p.b = sample(0, n, c.out), p.c = sample(2, n, c.in);
        break;
      case Pass::grad_weight:
        p.a = sample(1, n, c.out), p.b = sample(0, n, c.in), p.c = sums;
        p.addend = n > 0 ? sums : nullptr;
        break;
    }
    gemm::run(p, gemm::method_for(p, c.isa), c.isa, threads, scratch);
  }
  if (apart > 0) finish(c, threads, static_cast<const float*>(sums), operands[2]);
}

}  // namespace trainer::kernels::cpu::pointwise
