// dropout: x c [batch, ...], step i32 [1] → y c, where y may be x. Its gradient is itself, applied to dy.
//
// Element e of sample s at step t keeps its value, divided by 1 − p, where word e mod 4 of philox(key, s, (t << 40) + e
// / 4) is at least p · 2³²; else it becomes 0. Which s and e an element has follows from its place in the whole batch,
// f: s = f / sample, e = f mod sample. Of x seen as rows of `row` elements, element (i, j) has f = Call::origin + i ·
// stride + j. So the mask depends neither on threads nor on how a batch is cut, by samples, by rows or by columns, and
// recomputation repeats it.
//
// Attributes: p (real, in [0, 1)), key (the 64-bit key, two's complement), sample (elements of a whole sample, all its
// pieces together; by default those of x after dim 0), row (elements that lie one after another in the whole batch too;
// by default x's last dim), stride (from the first element of a row to that of the next in the whole batch; by default
// `row`). Columns of a matrix: row is x's last dim, stride that of the whole. A part of the sequence of each sample:
// row is the elements of the part, stride those of the sample. With `zigzag` such a part has two halves, each of `row`
// elements: of each sample rows 2i and 2i + 1, which begin at f and, as far before the sample's end as the first is
// behind its beginning, at f + sample − row − 2 · (f mod sample), where f = Call::origin + i · stride. REQUIRES: fewer
// than 2³⁴ elements in a sample. Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from
// Overfitting", 2014; engine/core/random.h.
#pragma once

#include <cstdint>

#include "engine/core/signature.h"

namespace trainer::kernels {

/// What a signature says of the mask.
struct DropoutMask {
  std::uint64_t key = 0;
  std::uint32_t threshold = 0;  ///< p · 2³²: words from it on keep their element
  float scale = 1;              ///< 1 / (1 − p)
  std::int64_t sample = 1, stride = 1;
  std::int64_t columns =
      1;  ///< elements that lie one after another in the whole batch: a row, or all where rows are whole
  bool zigzag = false;
  /// By how much the second half of a part begins later than the first.
  std::int64_t odd(std::int64_t origin) const { return zigzag ? sample - columns - 2 * (origin % sample) : 0; }
};
/// Raises Bug unless operands and attributes are as above.
DropoutMask dropout_mask(const Signature& signature);

}  // namespace trainer::kernels
