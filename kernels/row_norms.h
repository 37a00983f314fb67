// Norms of the rows of a matrix to which a product of low rank is added, for DoRA (engine/transform/adapter.h).
//
//   row_squares   weight c [out, in], a c [rank, in], b c [out, rank] → squares f32 [out]:
//                 squares[i] = Σ_j (weight[i, j] + factor · Σ_k b[i, k] a[k, j])². Attribute: factor. The matrix is
//                 never in memory; sums are f32 or better, in an order fixed by the shapes and the device
//   over_root     x c [n], squares f32 [n] → y c [n]: x / √squares, and 0 where squares are 0
#pragma once

#include <cstdint>

#include "engine/core/check.h"
#include "engine/core/signature.h"
#include "kernels/prepare.h"

namespace trainer::kernels {

struct RowSquaresSizes {
  std::int64_t rows = 0, columns = 0, rank = 0;
};

/// Raises Bug where the shapes do not fit.
inline RowSquaresSizes row_squares_sizes(const Signature& signature) {
  expect_operands(signature, 4);
  const Shape &weight = signature.operands[0].shape, &a = signature.operands[1].shape;
  CHECK(weight.rank() == 2 && a.rank() == 2, describe(signature) + ": weight and a are matrices");
  const DType dtype = signature.operands[0].dtype;
  expect_shape(signature, 0, dtype, weight);
  expect_shape(signature, 1, dtype, {a[0], weight[1]});
  expect_shape(signature, 2, dtype, {weight[0], a[0]});
  expect_operand(signature, 3, DType::f32, weight[0]);
  return {weight[0], weight[1], a[0]};
}

}  // namespace trainer::kernels
