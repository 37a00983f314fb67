// Range: some elements of a flat (row-major) tensor, and the same again at a stride: what a rank holds of a tensor that
// is cut along a dim other than the first. Seen as rows of the stride's length, every range is at most three blocks; so
// coverage and overlap are questions about rectangles, however many rows there are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer::checkpoint {

/// Elements [first + r · stride, last + r · stride) for r in [0, repeat), in that order.
struct Range {
  std::int64_t first = 0, last = 0;
  std::int64_t repeat = 1;
  std::int64_t stride = 0;  ///< 0 where repeat is 1, else at least count()

  std::int64_t count() const { return last - first; }
  std::int64_t size() const { return count() * repeat; }
  /// How many of its elements come before the one of flat index `element`. REQUIRES: it holds that.
  std::int64_t position(std::int64_t element) const;
  friend bool operator==(const Range&, const Range&) = default;
};

/// Whether it lies in a tensor of `elements` elements and, if it repeats, in rows of its stride; of any numbers.
bool is_sound(const Range& range, std::int64_t elements);
/// As "[8:12]", or "[8:12:3x16]" for three times, 16 apart.
std::string str(const Range& range);

/// Elements of rows [first_row, last_row), of each the columns [first, last).
struct Block {
  std::int64_t first_row = 0, last_row = 0, first = 0, last = 0;
};

/// The range as blocks of rows of `length` elements. REQUIRES: it does not repeat, or does so at that length.
std::vector<Block> blocks_of(const Range& range, std::int64_t length);
/// What both hold; nothing if a size is not positive.
Block intersection(const Block& a, const Block& b);

}  // namespace trainer::checkpoint
