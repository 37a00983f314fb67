// Rows of a table by index, and the gradient of the table.
//
//   embedding        ids i32 [...], weight c [rows, dim] → y c [..., dim]
//   embedding_grad   ids i32 [...], dy c [..., dim] → dweight r [rows, dim]
//   positions        weight c [rows, dim] → y c [seq, dim]: rows [first, first + seq)
//                    with `at`: weight, position i32 [1] → y: `position` rows later
//   positions_grad   dy c [seq, dim] → dweight r [rows, dim]: those rows are dy, all others 0
//   parameter_grad   dy c → dweight r of its shape: dy
//
// `first` is offset + origin mod rows (origin: Call::origin), so that a rank with a part of the sequence has its own
// positions. REQUIRES first + seq ≤ rows. With `zigzag` (positions of the whole sequence; 0: contiguous) seq is even,
// and the second half of y or dy has rows that end as far before offset + zigzag as the first half is behind offset.
//
// `accumulate` adds to dweight; without it rows that no id names become 0. The rows of one id are summed in f32 in the
// order of their places and rounded once, so the result depends on neither threads nor timing.
//
// Over ranks whose outputs are summed afterwards: with `cut`, weight and dweight are rows [origin, origin + rows) of a
// table of `table_rows` (origin: Call::origin); ids of other rows give zeros and add nothing. So do rows from
// `table_rows` on, the padding of the last slice. With `partial`, positions gives zeros where origin is `rows` or more:
// of ranks that add up their outputs, rank r has the origin r · rows + first. Throws DataError, before anything is
// written, for an id outside of [0, rows), or [0, table_rows).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/core/signature.h"

namespace trainer::kernels {

/// Throws DataError, naming the place and the value, unless every id is in [0, rows).
void check_ids(std::span<const std::int32_t> ids, std::int64_t rows);

/// Rows of the table from `first` on that a call of positions or positions_grad has, or half of them.
struct PositionRows {
  std::int64_t first = 0, count = 0;
};
/// All of them, one or two runs in order; the second may be empty. Raises Bug where they are not there.
std::array<PositionRows, 2> positions_rows(const Signature& signature, std::int64_t origin);

}  // namespace trainer::kernels
