// zero and cast. Equal dtypes are copied and f32 and bf16 converted by vectors, which is what a step does; other pairs
// go one by one.
#include "kernels/fill.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/bf16.h"
#include "kernels/cpu/copy/convert_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

struct F16 {
  std::uint16_t bits;
};

/// The nearest f32, but towards the neighbour with an odd last bit where inexact: rounding that to a narrower type then
/// gives what rounding the f64 itself gives.
float round_to_odd(double x) {
  const float near = static_cast<float>(x);
  if (std::isnan(x) || static_cast<double>(near) == x) return near;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(near);
  if (std::abs(static_cast<double>(near)) > std::abs(x)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

double widen(double x) { return x; }
double widen(float x) { return x; }
double widen(Bf16 x) { return to_f32(x); }
double widen(F16 x) {
  const int exponent = (x.bits >> 10) & 31, fraction = x.bits & 1023;
  const double sign = x.bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25));
}

void narrow(double x, double* y) { *y = x; }
void narrow(double x, float* y) { *y = static_cast<float>(x); }
void narrow(double x, Bf16* y) { *y = to_bf16(round_to_odd(x)); }
void narrow(double x, F16* y) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::abs(x);
  std::uint16_t bits = 0;
  if (std::isnan(x)) {
    bits = 0x7E00;
  } else if (magnitude >= 65520) {
    bits = 0x7C00;  // rounds to 65536 or more
  } else {
    const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
    const double units = std::nearbyint(std::ldexp(magnitude, 10 - exponent));  // of the last place; ties to even
    bits =
        static_cast<std::uint16_t>(((exponent + 14) << 10) + static_cast<int>(units));  // a carry moves the exponent on
  }
  y->bits = sign | bits;
}

template <typename X, typename Y>
Prepared cast_from(std::int64_t count, int threads) {
  return make_kernel([=](const Call& call) {
    const X* x = operand<X>(call, 0);
    Y* y = operand<Y>(call, 1);
    parallel_ranges(count, 64, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) narrow(widen(x[i]), y + i);
    });
  });
}

template <typename X>
Prepared cast_to(DType to, std::int64_t count, int threads) {
  switch (to) {
    case DType::f64:
      return cast_from<X, double>(count, threads);
    case DType::f32:
      return cast_from<X, float>(count, threads);
    case DType::bf16:
      return cast_from<X, Bf16>(count, threads);
    case DType::f16:
      return cast_from<X, F16>(count, threads);
    case DType::i32:
    case DType::u8:
      return nullptr;
  }
  return nullptr;
}

Prepared cast_between(DType from, DType to, std::int64_t count, int threads) {
  switch (from) {
    case DType::f64:
      return cast_to<double>(to, count, threads);
    case DType::f32:
      return cast_to<float>(to, count, threads);
    case DType::bf16:
      return cast_to<Bf16>(to, count, threads);
    case DType::f16:
      return cast_to<F16>(to, count, threads);
    case DType::i32:
    case DType::u8:
      return nullptr;
  }
  return nullptr;
}

/// The same bytes elsewhere: no value is read, so denormals and the bits of a NaN stay.
Prepared copy_bytes(std::int64_t bytes, int threads) {
  return make_kernel([=](const Call& call) {
    const char* x = operand<char>(call, 0);
    char* y = operand<char>(call, 1);
    if (x == y) return;
    parallel_ranges(bytes, 64, threads, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(y + begin, x + begin, static_cast<std::size_t>(end - begin));
    });
  });
}

}  // namespace

Prepared prepare_zero(const Signature& signature, const Context& context) {
  expect_operands(signature, 1);
  const std::int64_t bytes = signature.operands[0].bytes();
  const int threads = threads_for(bytes, context.threads);
  return make_kernel([=](const Call& call) {
    char* y = operand<char>(call, 0);
    parallel_ranges(bytes, 64, threads, [&](std::int64_t begin, std::int64_t end) {
      std::memset(y + begin, 0, static_cast<std::size_t>(end - begin));
    });
  });
}

Prepared prepare_cast(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  const TensorDesc &x = signature.operands[0], &y = signature.operands[1];
  const std::int64_t count = x.elements();
  expect_operand(signature, 1, y.dtype, count);
  const int threads = threads_for(x.bytes() + y.bytes(), context.threads);
  if (x.dtype == y.dtype) return copy_bytes(x.bytes(), threads);
  const bool narrowing = x.dtype == DType::f32 && y.dtype == DType::bf16;
  if (narrowing || (x.dtype == DType::bf16 && y.dtype == DType::f32)) {
    const auto loop = CHOOSE_BY_ISA(context.isa, convert);
    return make_kernel([=](const Call& call) {
      parallel_ranges(count, 64, threads, [&](std::int64_t begin, std::int64_t end) {
        loop(narrowing, operand<void>(call, 0), operand<void>(call, 1), begin, end);
      });
    });
  }
  Prepared kernel = cast_between(x.dtype, y.dtype, count, threads);
  if (kernel == nullptr) refuse_dtypes(signature, "f64, f32, bf16 and f16");
  return kernel;
}

}  // namespace trainer::kernels::cpu
