// split and concat: one launch for each piece copies its rows, 16 bytes at a time where rows of pieces are whole
// numbers of those. Bound by memory: every byte is read and written once. As many threads as a row has vectors, up to a
// block, copy one row together, so that no thread divides.
#include <algorithm>
#include <bit>

#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"
#include "kernels/split.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kEach = 4;  // vectors of a thread at once, of long rows

// ---- Device ----

// Row r of `to` = row r of `from`, `columns` vectors each; strides in vectors. 2^shift threads have a row.
template <typename Vector>
__global__ void __launch_bounds__(kThreads)
    copy_rows(const Vector* from, std::int64_t from_stride, Vector* to, std::int64_t to_stride, std::int64_t rows,
              int columns, int shift) {
  const int thread = static_cast<int>(threadIdx.x), step = 1 << shift;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kThreads >> shift) + (thread >> shift);
  if (row >= rows) return;
  from += row * from_stride;
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

/// Operand `whole` and pieces from operand `first` on.
template <typename Vector>
Prepared copies(const SplitRows& sizes, int whole, int first, bool splits) {
  constexpr std::int64_t kBytes = sizeof(Vector);
  return make_kernel([=](const Call& call) {
    for (std::size_t i = 0; i < sizes.widths.size(); ++i) {
      const std::int64_t columns = sizes.widths[i] / kBytes, stride = sizes.whole / kBytes;
      if (columns == 0) continue;
      const int shift = std::min(8, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(columns - 1))));
      Vector* const rows = operand<Vector>(call, whole) + sizes.offsets[i] / kBytes;
      Vector* const piece = operand<Vector>(call, first + static_cast<int>(i));
      const Grid grid{.blocks = blocks_for(sizes.rows, kThreads >> shift), .threads = kThreads};
      if (splits)
        launch(call, grid, copy_rows<Vector>, rows, stride, piece, columns, sizes.rows, static_cast<int>(columns),
               shift);
      else
        launch(call, grid, copy_rows<Vector>, piece, columns, rows, stride, sizes.rows, static_cast<int>(columns),
               shift);
    }
  });
}

Prepared prepare_pieces(const Signature& signature, bool splits) {
  const SplitRows sizes = split_rows(signature);
  const int whole = splits ? 0 : static_cast<int>(sizes.widths.size()), first = splits ? 1 : 0;
  const auto whole_numbers_of = [&](std::int64_t bytes) {
    return std::all_of(sizes.widths.begin(), sizes.widths.end(),
                       [&](std::int64_t width) { return width % bytes == 0; });
  };
  if (whole_numbers_of(16)) return copies<uint4>(sizes, whole, first, splits);
  if (whole_numbers_of(4)) return copies<std::uint32_t>(sizes, whole, first, splits);
  if (whole_numbers_of(2)) return copies<std::uint16_t>(sizes, whole, first, splits);
  return copies<std::uint8_t>(sizes, whole, first, splits);
}

}  // namespace

Prepared prepare_split(const Signature& signature, const Context&) { return prepare_pieces(signature, true); }
Prepared prepare_concat(const Signature& signature, const Context&) { return prepare_pieces(signature, false); }

}  // namespace trainer::kernels::cuda
