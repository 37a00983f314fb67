// What bias_grad (arithmetic.h) sums: dy seen as [rows, columns, inner], the columns being the bias's elements. Known
// to its kernels and to planning, which counts the workspace.
#pragma once

#include <cstdint>

#include "engine/core/check.h"
#include "engine/core/op_record.h"
#include "engine/core/signature.h"

namespace trainer::kernels {

struct BiasGradSizes {
  std::int64_t rows = 1, columns = 1, inner = 1;
};

inline BiasGradSizes bias_grad_sizes(const Signature& signature) {
  const Shape& dy = signature.operands[0].shape;
  const auto given = static_cast<int>(integer(signature, "dim"));
  const int dim = given < 0 ? given + dy.rank() : given;
  CHECK(dim >= 0 && dim < dy.rank() && signature.operands[1].elements() == dy[dim],
        "bias_grad gives an element for each of dy's dim `dim`");
  BiasGradSizes sizes{.columns = dy[dim]};
  for (int i = 0; i < dim; ++i) sizes.rows *= dy[i];
  for (int i = dim + 1; i < dy.rank(); ++i) sizes.inner *= dy[i];
  return sizes;
}

}  // namespace trainer::kernels
