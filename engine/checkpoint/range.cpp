// Coverage and overlap of ranges, as questions about rectangular blocks.
#include "engine/checkpoint/range.h"

#include <algorithm>

#include "engine/core/check.h"

namespace trainer::checkpoint {

std::int64_t Range::position(std::int64_t element) const {
  const std::int64_t at = element - first;
  return repeat == 1 ? at : at / stride * count() + at % stride;
}

bool is_sound(const Range& range, std::int64_t elements) {
  if (range.first < 0 || range.last < range.first || range.last > elements || range.repeat < 1) return false;
  if (range.repeat == 1) return range.stride == 0;
  if (range.stride < 1 || range.stride > elements || range.count() == 0) return false;
  // Divided, not multiplied: the numbers are a file's.
  return range.first % range.stride + range.count() <= range.stride &&
         range.repeat - 1 <= (elements - range.last) / range.stride;
}

std::string str(const Range& range) {
  std::string text = "[" + std::to_string(range.first) + ":" + std::to_string(range.last);
  if (range.repeat > 1) text += ":" + std::to_string(range.repeat) + "x" + std::to_string(range.stride);
  return text + "]";
}

std::vector<Block> blocks_of(const Range& range, std::int64_t length) {
  CHECK(range.repeat == 1 || range.stride == length, "a range repeats at another length than its tensor's rows");
  if (range.count() <= 0) return {};
  const std::int64_t row = range.first / length, column = range.first % length;
  if (range.repeat > 1) return {{row, row + range.repeat, column, column + range.count()}};
  const std::int64_t last_row = range.last / length, last_column = range.last % length;
  if (row == last_row) return {{row, row + 1, column, last_column}};
  std::vector<Block> blocks;
  if (column > 0) blocks.push_back({row, row + 1, column, length});
  if (row + (column > 0 ? 1 : 0) < last_row) blocks.push_back({row + (column > 0 ? 1 : 0), last_row, 0, length});
  if (last_column > 0) blocks.push_back({last_row, last_row + 1, 0, last_column});
  return blocks;
}

Block intersection(const Block& a, const Block& b) {
  return {std::max(a.first_row, b.first_row), std::min(a.last_row, b.last_row), std::max(a.first, b.first),
          std::min(a.last, b.last)};
}

}  // namespace trainer::checkpoint
