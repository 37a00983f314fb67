// What linear's kernels do beside the product (linear_parts.cu). Sums have an order fixed by shapes and the device.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"
#include "kernels/cuda/reduction/column_cut.h"
#include "kernels/kernel.h"

namespace trainer::kernels::cuda {

/// y [rows, columns] = bias [columns] in every row; all of dtype `c`.
void fill_rows(const Call& call, DType c, const void* bias, void* y, std::int64_t rows, std::int64_t columns);

/// to r [count] = from f32 [count], rounded; `accumulate` adds.
void round_to(const Call& call, const float* from, DType r, void* to, std::int64_t count, bool accumulate);

/// The sums of columns of x c [rows, columns], to r [columns]; `accumulate` adds. In two passes: parts of the rows
/// first, whose sums stand in the workspace, then the parts in order.
struct ColumnSums {
  DType c = DType::f32, r = DType::f32;
  bool accumulate = false;
  ColumnCut cut;

  ColumnSums(DType c, DType r, std::int64_t rows, std::int64_t columns, bool accumulate, int units);
  /// `workspace`: cut.workspace_bytes().
  void run(const Call& call, const void* x, void* sums, float* workspace) const;
};

}  // namespace trainer::kernels::cuda
