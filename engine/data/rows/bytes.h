// ByteSource: the bytes of a file from front to back, decompressed. Window: the bytes that were read and not yet used;
// it grows as far as its reader asks for more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "engine/data/data_file.h"

namespace trainer::data {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Writes up to `bytes` more bytes to `out`; returns how many: 0 only at the end. REQUIRES: bytes > 0.
  virtual std::size_t read(char* out, std::size_t bytes) = 0;
  /// Bytes of the file read so far.
  virtual std::int64_t bytes_read() const = 0;
};

/// The contents of `file`, decompressed if it begins as gzip or zstd.
std::unique_ptr<ByteSource> open_bytes(DataFile file);
/// Bytes [first, last) of `file` as they are. REQUIRES: they lie in it, and it outlives the source.
std::unique_ptr<ByteSource> part_bytes(const DataFile& file, std::int64_t first, std::int64_t last);

class Window {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{1} << 20;  ///< fits a core's cache

  explicit Window(std::unique_ptr<ByteSource> source, std::size_t block_bytes = kBlockBytes)
      : source_(std::move(source)), block_bytes_(block_bytes) {}

  /// The bytes that were read and not taken. Valid until the next call of more().
  std::string_view text() const { return {buffer_.get() + first_, last_ - first_}; }
  /// Reads more behind the text; false at the end of the source, where the text stays as it is.
  bool more();
  /// Drops the first bytes of the text. REQUIRES: it has so many.
  void take(std::size_t bytes) { first_ += bytes; }
  std::int64_t bytes_read() const { return source_->bytes_read(); }

 private:
  void make_room();

  std::unique_ptr<ByteSource> source_;
  std::size_t block_bytes_;
  std::unique_ptr<char[]> buffer_;
  std::size_t size_ = 0, first_ = 0, last_ = 0;  // of the buffer; of the text in it
};

}  // namespace trainer::data
