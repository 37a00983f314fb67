// HybridDecoder: runs of one number (RLE) and stretches of bit-packed numbers, mixed: levels, indices of dictionaries,
// booleans. Source: parquet-format, Encodings.md, "Run Length Encoding / Bit-Packing Hybrid (RLE = 3)".
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/data/parquet/bits.h"

namespace trainer::data::parquet {

class HybridDecoder {
 public:
  HybridDecoder() = default;
  /// Numbers of `width` bits, 0 to 32; those of 0 bits are 0, and take no bytes. REQUIRES: the bytes outlive it.
  HybridDecoder(std::string_view bytes, int width) : bytes_(bytes), width_(width) {
    if (width < 0 || width > 32) throw Damaged("a page has numbers of " + std::to_string(width) + " bits");
  }

  /// Raises Damaged after the last number.
  std::uint32_t next() {
    while (left_ == 0) {
      if (width_ == 0) return 0;
      begin_run();
    }
    --left_;
    if (!packed_) return value_;
    const std::uint64_t at = bit_;
    bit_ += static_cast<std::uint64_t>(width_);
    return static_cast<std::uint32_t>(bits_at(run_, at, width_));
  }

 private:
  void begin_run() {
    const std::uint64_t head = take_varint(bytes_);
    const auto width = static_cast<std::uint64_t>(width_);
    packed_ = (head & 1) != 0;
    left_ = head >> 1;
    if (!packed_) {
      value_ = 0;
      const std::string_view value = take_bytes(bytes_, (width + 7) / 8);
      std::memcpy(&value_, value.data(), value.size());
      return;
    }
    // Groups of eight numbers; some writers shorten the last one to the bytes that are needed.
    const std::uint64_t whole = left_ <= bytes_.size() ? left_ * width : bytes_.size();
    run_ = take_bytes(bytes_, whole < bytes_.size() ? whole : bytes_.size());
    left_ = run_.size() * 8 / width;
    bit_ = 0;
  }

  std::string_view bytes_, run_;  // what follows; of the packed run
  int width_ = 0;
  bool packed_ = false;
  std::uint64_t left_ = 0, bit_ = 0;  // of the run
  std::uint32_t value_ = 0;
};

}  // namespace trainer::data::parquet
