// A tensor in pieces along one dim, and pieces as one tensor; each is the gradient of the other. The attribute `dim`
// counts from the last, -1.
//
//   split     x c [..., n₀ + n₁ + …, ...] → y₀ c [..., n₀, ...], y₁ c [..., n₁, ...], …
//   concat    x₀ c [..., n₀, ...], x₁ c [..., n₁, ...], … → y c [..., n₀ + n₁ + …, ...]
//
// One piece alone, and copies along another dim:
//
//   slice       x c [..., n, ...] → y c [..., size, ...]: places from `start` on
//   slice_grad  dy c [..., size, ...] → dx c [..., n, ...]: 0 elsewhere
//   expand      x c [...], like [..., n, ...] → y c [..., n, ...]: n copies along dim `dim` (0 where absent), counted
//               from 0; `like` is not read
//
// Bytes are copied as they are. No output may share memory with an input.
#pragma once

#include <vector>

#include "engine/core/signature.h"

namespace trainer::kernels {

/// A row is what the dim and those behind it hold, in bytes. Piece i lies at offsets[i] of a whole row.
struct SplitRows {
  std::int64_t rows = 0, whole = 0;
  std::vector<std::int64_t> offsets, widths;
};
/// Of a split, whose whole is operand 0, or a concat, whose whole is the last. Raises Bug where the pieces do not make
/// up the whole.
SplitRows split_rows(const Signature& signature);

/// Bytes of rows likewise, of which one piece counts.
struct SliceRows {
  std::int64_t rows = 0, whole = 0, offset = 0, width = 0;
};
/// Of a slice or its gradient. Raises Bug where the piece is none of the whole.
SliceRows slice_rows(const Signature& signature);

/// An expand: `copies` of each row, which is what the dims from `dim` on hold, in bytes.
struct ExpandRows {
  std::int64_t rows = 0, copies = 0, width = 0;
};
/// Raises Bug where y is not x with another dim.
ExpandRows expand_rows(const Signature& signature);

}  // namespace trainer::kernels
