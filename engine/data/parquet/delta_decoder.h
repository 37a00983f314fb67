// DeltaDecoder: integers as differences, packed in blocks of miniblocks, each with a width of its own.
// Source: parquet-format, Encodings.md, "Delta Encoding (DELTA_BINARY_PACKED = 5)".
#pragma once

#include <cstdint>
#include <string_view>

namespace trainer::data::parquet {

class DeltaDecoder {
 public:
  DeltaDecoder() = default;
  /// Reads the header. REQUIRES: the bytes outlive it.
  explicit DeltaDecoder(std::string_view bytes);

  /// The next number, modulo 2^64; the low half is a 32-bit number. Raises Damaged after the last one.
  std::int64_t next();
  /// The bytes after the last number; skips the numbers that are left.
  std::string_view rest();

 private:
  void begin_miniblock();
  void begin_block();

  std::string_view bytes_, widths_, packed_;  // what follows; widths of the block's next miniblocks; the miniblock
  std::uint64_t num_miniblocks_ = 0, miniblock_values_ = 0;
  std::uint64_t left_ = 0, in_miniblock_ = 0, bit_ = 0;
  std::uint64_t value_ = 0, min_delta_ = 0;
  int width_ = 0;
  bool first_ = true;
};

}  // namespace trainer::data::parquet
