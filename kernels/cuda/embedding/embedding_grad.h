// The workspace of embedding_grad: what the kernels need and what planning counts, in one place.
#pragma once

#include <cstdint>

namespace trainer::kernels::cuda {

/// In words of 32 bits, one after the other: two copies each of keys and places, between which the sort goes back and
/// forth; counts of digits by tile; where each row of the table begins among the sorted; how many rows are long, and
/// which.
struct EmbeddingGradWorkspace {
  static constexpr std::int64_t kTile = 2048;   ///< ids that a block sorts
  static constexpr std::int64_t kDigits = 256;  ///< of a pass
  static constexpr std::int64_t kLong = 32;     ///< ids of one row from which on a whole block sums it, not a warp

  std::int64_t tiles, counts, starts, num_long, long_rows, words;

  EmbeddingGradWorkspace(std::int64_t ids, std::int64_t rows)
      : tiles((ids + kTile - 1) / kTile),
        counts(4 * ids),
        starts(counts + tiles * kDigits),
        num_long(starts + rows + 1),
        long_rows(num_long + 1),
        words(long_rows + ids / kLong + 1) {}
};

}  // namespace trainer::kernels::cuda
