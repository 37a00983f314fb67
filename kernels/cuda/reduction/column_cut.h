// How the rows of x [rows, columns] are cut where columns are summed (column_sums.cuh): one rule for the kernels and
// for the workspace that is planned for them. No CUDA in this header.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/core/dtype.h"

namespace trainer::kernels::cuda {

/// Enough parts for every multiprocessor to have four blocks, at most two for each, and none of fewer rows than make it
/// worth its sum. A block sums one part of 32 vectors of columns, or of 32 columns where rows are not whole vectors.
struct ColumnCut {
  static constexpr std::int64_t kSlices = 8;  ///< warps of a block, which share out rows
  static constexpr std::int64_t kColumns = 32, kVectorBytes = 16;

  std::int64_t rows, columns, parts, rows_each;

  ColumnCut(DType x, std::int64_t rows, std::int64_t columns, int units) : rows(rows), columns(columns) {
    const std::int64_t vector = kVectorBytes / size_of(x), tile = columns % vector == 0 ? kColumns * vector : kColumns;
    const std::int64_t tiles = std::max<std::int64_t>(1, (columns + tile - 1) / tile);
    const std::int64_t wanted = std::min((4 * units + tiles - 1) / tiles, std::int64_t{2} * units),
                       most = (rows + 4 * kSlices - 1) / (4 * kSlices);
    const std::int64_t cuts = std::max<std::int64_t>(1, std::min(wanted, most));
    rows_each = std::max<std::int64_t>(1, (rows + cuts - 1) / cuts);
    parts = std::max<std::int64_t>(1, (rows + rows_each - 1) / rows_each);
  }

  /// Sums of the parts, f32 [parts, columns]; a single part needs none.
  std::int64_t workspace_bytes() const { return parts == 1 ? 0 : parts * columns * std::int64_t{4}; }
};

}  // namespace trainer::kernels::cuda
