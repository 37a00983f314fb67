// Blocks and miniblocks of DELTA_BINARY_PACKED.
#include "engine/data/parquet/delta_decoder.h"

#include <algorithm>

#include "engine/data/parquet/bits.h"

namespace trainer::data::parquet {
namespace {

constexpr std::uint64_t kMostBlockValues = std::uint64_t{1} << 24;

std::uint64_t take_zigzag(std::string_view& bytes) {
  const std::uint64_t value = take_varint(bytes);
  return value >> 1 ^ (0 - (value & 1));
}

}  // namespace

DeltaDecoder::DeltaDecoder(std::string_view bytes) : bytes_(bytes) {
  const std::uint64_t block_values = take_varint(bytes_);
  num_miniblocks_ = take_varint(bytes_);
  left_ = take_varint(bytes_);
  value_ = take_zigzag(bytes_);
  if (num_miniblocks_ == 0 || block_values > kMostBlockValues || block_values % num_miniblocks_ != 0)
    throw Damaged("a page has deltas in blocks of no valid size");
  miniblock_values_ = block_values / num_miniblocks_;
  if (miniblock_values_ == 0 || miniblock_values_ % 8 != 0)
    throw Damaged("a page has deltas in blocks of no valid size");
}

void DeltaDecoder::begin_block() {
  min_delta_ = take_zigzag(bytes_);
  widths_ = take_bytes(bytes_, num_miniblocks_);
}

// REQUIRES: a value is left: only then does the page have the miniblock.
void DeltaDecoder::begin_miniblock() {
  if (widths_.empty()) begin_block();
  width_ = static_cast<std::uint8_t>(take_bytes(widths_, 1)[0]);
  if (width_ > 64) throw Damaged("a page has deltas of " + std::to_string(width_) + " bits");
  packed_ = take_bytes(bytes_, miniblock_values_ / 8 * static_cast<std::uint64_t>(width_));
  in_miniblock_ = miniblock_values_;
  bit_ = 0;
}

std::int64_t DeltaDecoder::next() {
  if (left_ == 0) throw Damaged("a page's values end too early");
  --left_;
  if (first_) {
    first_ = false;
    return static_cast<std::int64_t>(value_);
  }
  if (in_miniblock_ == 0) begin_miniblock();
  --in_miniblock_;
  value_ += min_delta_ + bits_at(packed_, bit_, width_);
  bit_ += static_cast<std::uint64_t>(width_);
  return static_cast<std::int64_t>(value_);
}

std::string_view DeltaDecoder::rest() {
  if (first_ && left_ > 0) --left_;
  first_ = false;
  while (left_ > 0) {
    if (in_miniblock_ == 0) begin_miniblock();
    const std::uint64_t passed = std::min(left_, in_miniblock_);
    left_ -= passed;
    in_miniblock_ -= passed;
  }
  return bytes_;
}

}  // namespace trainer::data::parquet
