// split, concat, slice and expand: one launch for each piece copies its rows, 16 bytes at a time where rows of pieces
// are whole numbers of those; a slice's gradient is made 0 first. Bound by memory: every byte is read and written once.
// As many threads as a row has vectors, up to a block, copy one row together, so that no thread divides
// (but for `expand`).
#include <algorithm>
#include <bit>
#include <initializer_list>
#include <numeric>

#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"
#include "kernels/split.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kEach = 4;  // vectors of a thread at once, of long rows

// ---- Device ----

// Row r of `to` = row r of `from`, or r / copies; `columns` vectors each; strides in vectors. 2^shift threads have a
// row.
template <typename Vector, bool kCopies>
__global__ void __launch_bounds__(kThreads)
    copy_rows(const Vector* from, std::int64_t from_stride, Vector* to, std::int64_t to_stride, std::int64_t rows,
              int columns, int shift, std::int64_t copies) {
  const int thread = static_cast<int>(threadIdx.x), step = 1 << shift;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads >> shift) + (thread >> shift);
  if (row >= rows) return;
  from += (kCopies ? row / copies : row) * from_stride;
  to += row * to_stride;
  for (int first = thread & (step - 1); first < columns; first += step * kEach) {
    Vector held[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (first + k * step < columns) held[k] = from[first + k * step];
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (first + k * step < columns) to[first + k * step] = held[k];
  }
}

// ---- Host ----

/// Rows of `columns` vectors each; strides in vectors.
template <typename Vector, bool kCopies = false>
void copy(const Call& call, const Vector* from, std::int64_t from_stride, Vector* to, std::int64_t to_stride,
          std::int64_t rows, std::int64_t columns, std::int64_t copies = 1) {
  if (columns == 0) return;
  const int shift = std::min(8, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(columns - 1))));
  const Grid grid{.blocks = blocks_for(rows, kThreads >> shift), .threads = kThreads};
  launch(call, grid, copy_rows<Vector, kCopies>, from, from_stride, to, to_stride, rows, static_cast<int>(columns),
         shift, copies);
}

/// Calls fn(Vector{}) with the widest vector of which all of these sizes and offsets are whole numbers.
template <typename Fn>
Prepared with_vector(std::initializer_list<std::int64_t> bytes, Fn&& fn) {
  const auto whole_numbers_of = [&](std::int64_t vector) {
    return std::all_of(bytes.begin(), bytes.end(), [&](std::int64_t size) { return size % vector == 0; });
  };
  if (whole_numbers_of(16)) return fn(uint4{});
  if (whole_numbers_of(4)) return fn(std::uint32_t{});
  if (whole_numbers_of(2)) return fn(std::uint16_t{});
  return fn(std::uint8_t{});
}

Prepared prepare_pieces(const Signature& signature, bool splits) {
  const SplitRows sizes = split_rows(signature);
  const int whole = splits ? 0 : static_cast<int>(sizes.widths.size()), first = splits ? 1 : 0;
  std::int64_t divisor = 0;  // of all widths, and so of all offsets
  for (std::int64_t width : sizes.widths) divisor = std::gcd(divisor, width);
  return with_vector({divisor}, [&]<typename Vector>(Vector) -> Prepared {
    return make_kernel([=](const Call& call) {
      for (std::size_t i = 0; i < sizes.widths.size(); ++i) {
        constexpr std::int64_t kBytes = sizeof(Vector);
        const std::int64_t columns = sizes.widths[i] / kBytes, stride = sizes.whole / kBytes;
        Vector* const rows = operand<Vector>(call, whole) + sizes.offsets[i] / kBytes;
        Vector* const piece = operand<Vector>(call, first + static_cast<int>(i));
        if (splits)
          copy<Vector>(call, rows, stride, piece, columns, sizes.rows, columns);
        else
          copy<Vector>(call, piece, columns, rows, stride, sizes.rows, columns);
      }
    });
  });
}

}  // namespace

Prepared prepare_split(const Signature& signature, const Context&) { return prepare_pieces(signature, true); }
Prepared prepare_concat(const Signature& signature, const Context&) { return prepare_pieces(signature, false); }

Prepared prepare_slice(const Signature& signature, const Context&) {
  const SliceRows s = slice_rows(signature);
  return with_vector({s.whole, s.offset, s.width}, [&]<typename Vector>(Vector) -> Prepared {
    constexpr std::int64_t kBytes = sizeof(Vector);
    return make_kernel([=](const Call& call) {
      copy<Vector>(call, operand<Vector>(call, 0) + s.offset / kBytes, s.whole / kBytes, operand<Vector>(call, 1),
                   s.width / kBytes, s.rows, s.width / kBytes);
    });
  });
}

Prepared prepare_slice_grad(const Signature& signature, const Context&) {
  const SliceRows s = slice_rows(signature);
  return with_vector({s.whole, s.offset, s.width}, [&]<typename Vector>(Vector) -> Prepared {
    constexpr std::int64_t kBytes = sizeof(Vector);
    return make_kernel([=](const Call& call) {
      Vector* const dx = operand<Vector>(call, 1);
      if (s.width < s.whole)
        check(cudaMemsetAsync(dx, 0, static_cast<std::size_t>(s.rows * s.whole), stream_of(call)), "cudaMemsetAsync");
      copy<Vector>(call, operand<Vector>(call, 0), s.width / kBytes, dx + s.offset / kBytes, s.whole / kBytes, s.rows,
                   s.width / kBytes);
    });
  });
}

Prepared prepare_expand(const Signature& signature, const Context&) {
  const ExpandRows s = expand_rows(signature);
  return with_vector({s.width}, [&]<typename Vector>(Vector) -> Prepared {
    const std::int64_t columns = s.width / static_cast<std::int64_t>(sizeof(Vector));
    return make_kernel([=](const Call& call) {
      copy<Vector, true>(call, operand<Vector>(call, 0), columns, operand<Vector>(call, 2), columns, s.rows * s.copies,
                         columns, s.copies);
    });
  });
}

}  // namespace trainer::kernels::cuda
