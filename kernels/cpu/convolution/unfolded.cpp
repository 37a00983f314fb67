// Unfolding and folding move elements plane by plane, between them one product (gemm/).
#include "kernels/cpu/convolution/unfolded.h"

#include <algorithm>

#include "kernels/cpu/convolution/rounded.h"
#include "kernels/cpu/copy/transpose_loops.h"
#include "kernels/cpu/gemm/column_sums.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu::unfolded {
namespace {

using gemm::Order;
using gemm::Problem;

std::int64_t rows_of(const Convolution& c) { return c.n * c.places(); }
std::int64_t depth_of(const Convolution& c) { return c.in * c.window(); }
std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return gemm::round_up(elements * static_cast<std::int64_t>(size_of(dtype)), 64);
}

/// The product, but for where its operands lie.
Problem problem_of(const Convolution& c, Pass pass) {
  Problem p;
  p.inputs_are_f32 = c.dtype == DType::f32;
  const std::int64_t rows = rows_of(c), depth = depth_of(c);
  switch (pass) {
    case Pass::forward:
      p.m = rows, p.k = depth, p.n = c.out;
      p.lda = depth, p.ldb = depth;
      p.b_order = Order::columns;
      p.c_is_f32 = p.inputs_are_f32;
      break;
    case Pass::grad_input:
      p.m = rows, p.k = c.out, p.n = depth;
      p.lda = c.out, p.ldb = depth;
      p.b_order = Order::rows;
      p.c_is_f32 = true;
      break;
    case Pass::grad_weight:
      p.m = c.out, p.k = rows, p.n = depth;
      p.lda = c.out, p.ldb = depth;
      p.a_order = Order::columns, p.b_order = Order::rows;
      p.c_is_f32 = c.parameter_gradients == DType::f32;
      break;
  }
  p.ldc = p.n;
  return p;
}

/// Parts of the workspace: the unfolded images or their gradient, the outputs or their gradient channels last, a plane
/// of sums for each thread, and what the product needs.
struct Parts {
  std::int64_t unfolded = 0, outputs = 0, planes = 0, product = 0;
  std::int64_t all() const { return unfolded + outputs + planes + product; }
};

std::int64_t plane_bytes(const Convolution& c) { return bytes_of(c.h * c.w, DType::f32); }

Parts parts_of(const Convolution& c, Pass pass, int threads) {
  const Problem p = problem_of(c, pass);
  const bool folds = pass == Pass::grad_input;
  return {bytes_of(rows_of(c) * depth_of(c), folds ? DType::f32 : c.dtype), bytes_of(rows_of(c) * c.out, c.dtype),
          folds ? threads * plane_bytes(c) : 0, gemm::workspace_bytes(p, gemm::method_for(p, c.isa), c.isa, threads)};
}

/// move(thread, plane of x, the first window of that plane in the unfolded images) for every plane.
template <typename Move>
void for_each_plane(const Convolution& c, int threads, Move move) {
  const std::int64_t plane = c.h * c.w, depth = depth_of(c);
  parallel(threads, [&](int thread, int parts) {
    const Range range = partition(c.n * c.in, thread, parts);
    for (std::int64_t i = range.begin; i < range.end; ++i)
      move(thread, i * plane, i / c.in * c.places() * depth + i % c.in * c.window());
  });
}

/// visit(x) with a pointer of the type that x has.
template <typename Visit>
void as_typed(const Convolution& c, void* x, Visit visit) {
  c.dtype == DType::f32 ? visit(static_cast<float*>(x)) : visit(static_cast<Bf16*>(x));
}

}  // namespace

// Measured with ResNet-18 over planes of 16 × 16 to 2 × 2, on AVX2, AVX-512 and AMX.
bool is_faster(const Convolution& c, Pass pass) {
  constexpr std::int64_t kSmall = 16, kSmallest = 4;
  const bool tiles = c.dtype == DType::bf16 && c.isa >= Isa::amx;
  const bool small = pass == Pass::grad_weight || (pass == Pass::forward && tiles);
  return c.places() <= (small ? kSmall : kSmallest);
}

std::int64_t workspace_bytes(const Convolution& c, Pass pass, int threads) { return parts_of(c, pass, threads).all(); }

Product::Product(const Convolution& c, Pass pass, int threads) : c_(c), pass_(pass), threads_(threads) {
  for (std::int64_t i = 0; i < c.oh; ++i)
    for (std::int64_t j = 0; j < c.ow; ++j)
      for (std::int64_t a = 0; a < c.kh; ++a)
        for (std::int64_t b = 0; b < c.kw; ++b) {
          const std::int64_t row = i * c.stride + a - c.padding_rows, column = j * c.stride + b - c.padding;
          const bool inside = row >= 0 && row < c.h && column >= 0 && column < c.w;
          windows_.push_back(inside ? static_cast<std::int32_t>(row * c.w + column) : -1);
        }
}

template <typename T>
void Product::unfold(const T* x, T* to) const {
  const std::int64_t depth = depth_of(c_), window = c_.window();
  for_each_plane(c_, threads_, [&](int, std::int64_t plane, std::int64_t first) {
    const std::int32_t* at = windows_.data();
    for (std::int64_t place = 0; place < c_.places(); ++place)
      for (std::int64_t t = 0; t < window; ++t, ++at) to[first + place * depth + t] = *at < 0 ? T{} : x[plane + *at];
  });
}

/// Sums of what windows have in common, in f32.
template <typename T>
void Product::fold(const float* from, T* dx, std::byte* planes) const {
  const std::int64_t depth = depth_of(c_), window = c_.window(), elements = c_.h * c_.w;
  for_each_plane(c_, threads_, [&](int thread, std::int64_t plane, std::int64_t first) {
    auto* const sums = reinterpret_cast<float*>(planes + thread * plane_bytes(c_));
    std::fill_n(sums, elements, 0.0F);
    const std::int32_t* at = windows_.data();
    for (std::int64_t place = 0; place < c_.places(); ++place)
      for (std::int64_t t = 0; t < window; ++t, ++at)
        if (*at >= 0) sums[*at] += from[first + place * depth + t];
    for (std::int64_t i = 0; i < elements; ++i) dx[plane + i] = rounded_as(sums[i], dx);
  });
}

/// Between [n, out, places] and [n, places, out].
void Product::turn(bool channels_last, const void* from, void* to) const {
  const std::int64_t sample = c_.out * c_.places();
  const Transposition t = channels_last ? Transposition{c_.out, c_.places(), c_.places(), c_.out}
                                        : Transposition{c_.places(), c_.out, c_.out, c_.places()};
  const auto each = [&]<typename T>(void (*loop)(const Transposition&, const T*, T*)) {
    parallel_ranges(c_.n, 1, threads_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        loop(t, static_cast<const T*>(from) + i * sample, static_cast<T*>(to) + i * sample);
    });
  };
  if (c_.dtype == DType::f32)
    each(CHOOSE_BY_ISA(c_.isa, transpose_f32));
  else
    each(CHOOSE_BY_ISA(c_.isa, transpose_u16));
}

void Product::run(std::span<void* const> operands, void* workspace) const {
  const Parts parts = parts_of(c_, pass_, threads_);
  auto* const unfolded = static_cast<std::byte*>(workspace);
  auto* const outputs = unfolded + parts.unfolded;
  auto* const planes = outputs + parts.outputs;
  Problem p = problem_of(c_, pass_);
  const auto multiply = [&] { gemm::run(p, gemm::method_for(p, c_.isa), c_.isa, threads_, planes + parts.planes); };
  const auto unfold_images = [&](void* x) {
    as_typed(c_, x, [&]<typename T>(T* images) { unfold(images, reinterpret_cast<T*>(unfolded)); });
  };
  switch (pass_) {
    case Pass::forward:
      unfold_images(operands[0]);
      p.a = unfolded, p.b = operands[1], p.c = outputs;
      if (c_.bias) p.bias = operands[2];
      multiply();
      turn(false, outputs, operands[c_.bias ? 3 : 2]);
      break;
    case Pass::grad_input:
      turn(true, operands[0], outputs);
      p.a = outputs, p.b = operands[1], p.c = unfolded;
      multiply();
      as_typed(c_, operands[2], [&](auto* dx) { fold(reinterpret_cast<const float*>(unfolded), dx, planes); });
      break;
    case Pass::grad_weight:
      unfold_images(operands[0]);
      turn(true, operands[1], outputs);
      p.a = outputs, p.b = unfolded, p.c = operands[2];
      if (c_.accumulate) p.addend = p.c;
      multiply();
      if (c_.bias)
        gemm::sum_columns({p.k, p.m, outputs, p.inputs_are_f32, operands[3], p.c_is_f32, c_.accumulate}, c_.isa,
                          threads_);
      break;
  }
}

}  // namespace trainer::kernels::cpu::unfolded
