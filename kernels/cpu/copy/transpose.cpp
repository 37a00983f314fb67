// transpose: matrices (transpose_loops.h), of which every thread takes strips; runs where the last dim stays the last.
#include "kernels/transpose.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/copy/transpose_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

constexpr std::int64_t kStrip = 32;  // rows of y: whole squares of the loops

/// Where the index-th place of dims [0, rank) of y but `skipped` lies in x and in y, in elements.
struct Place {
  std::int64_t x = 0, y = 0;
};
Place place_of(const Strides& s, const std::int64_t* y_stride, int rank, int skipped, std::int64_t index) {
  Place place;
  for (int dim = rank - 1; dim >= 0; --dim) {
    if (dim == skipped) continue;
    const std::int64_t at = index % s.size[dim];
    index /= s.size[dim];
    place.x += at * s.stride[dim];
    place.y += at * y_stride[dim];
  }
  return place;
}

/// Each run of y's last dim is one of x.
Prepared runs_of(const Strides& s, std::int64_t element, std::int64_t count, int threads) {
  const std::int64_t run = s.rank == 0 ? 1 : s.size[s.rank - 1], runs = count / run;
  std::int64_t stride[Shape::kMaxDims] = {}, step = 1;
  for (int dim = s.rank - 1; dim >= 0; step *= s.size[dim--]) stride[dim] = step;
  return make_kernel([=](const Call& call) {
    parallel_ranges(runs, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Place place = place_of(s, stride, s.rank - 1, -1, i);
        std::memcpy(operand<char>(call, 1) + place.y * element, operand<char>(call, 0) + place.x * element,
                    static_cast<std::size_t>(run * element));
      }
    });
  });
}

/// Dim `inner` of y is the one whose places are neighbours in x: over the two there are matrices.
template <typename T>
Prepared matrices_of(const Strides& s, int inner, std::int64_t count, int threads,
                     void (*loop)(const Transposition&, const T*, T*)) {
  const int last = s.rank - 1;
  const std::int64_t rows = s.size[inner], columns = s.size[last], strips = (rows + kStrip - 1) / kStrip,
                     parts = count / (rows * columns) * strips;
  std::int64_t stride[Shape::kMaxDims] = {}, step = 1;
  for (int dim = last; dim >= 0; step *= s.size[dim--]) stride[dim] = step;
  return make_kernel([=](const Call& call) {
    parallel_ranges(parts, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Place place = place_of(s, stride, last, inner, i / strips);
        const std::int64_t first = i % strips * kStrip;
        loop({columns, std::min(kStrip, rows - first), s.stride[last], stride[inner]},
             operand<T>(call, 0) + place.x + first, operand<T>(call, 1) + place.y + first * stride[inner]);
      }
    });
  });
}

}  // namespace

Prepared prepare_transpose(const Signature& signature, const Context& context) {
  const Strides s = transpose_strides(signature);
  const TensorDesc& x = signature.operands[0];
  const int threads = threads_for(2 * x.bytes(), context.threads);
  const std::int64_t element = size_of(x.dtype);
  if (s.rank == 0 || s.stride[s.rank - 1] == 1) return runs_of(s, element, x.elements(), threads);
  const auto inner = static_cast<int>(std::find(s.stride, s.stride + s.rank, 1) - s.stride);
  switch (element) {
    case 2:
      return matrices_of(s, inner, x.elements(), threads, CHOOSE_BY_ISA(context.isa, transpose_u16));
    case 4:
      return matrices_of(s, inner, x.elements(), threads, CHOOSE_BY_ISA(context.isa, transpose_f32));
    default:
      refuse_dtypes(signature, "elements of 2 or 4 bytes");
  }
}

}  // namespace trainer::kernels::cpu
