// Files compressed by gzip (RFC 1952; any number of members) and zstd (RFC 8878; any number of frames), decompressed
// from front to back. A file that is cut off or damaged is a DataError with the offset in the compressed file, once the
// data before that offset was read.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/data/data_file.h"
#include "engine/data/rows/bytes.h"

namespace trainer::data {

/// Whether a file that begins with `head` (4 bytes are enough) is of this kind.
bool is_gzip(std::string_view head);
bool is_zstd(std::string_view head);

/// Needs some 300 KiB of memory.
std::unique_ptr<ByteSource> gzip_bytes(DataFile file);
/// Needs the window that the file asks for: 8 MiB by default, up to 2 GiB for a file compressed with --long.
std::unique_ptr<ByteSource> zstd_bytes(DataFile file);

/// The compressed bytes, in blocks, and where in the file they are.
class CompressedInput {
 public:
  explicit CompressedInput(DataFile file) : file_(std::move(file)) {}

  /// The next block; empty at the end.
  std::string_view next();
  /// REQUIRES: the last `left` bytes of the block are not decompressed yet.
  std::int64_t bytes_read(std::size_t left) const { return end_ - static_cast<std::int64_t>(left); }
  /// Raises DataError.
  [[noreturn]] void fail_cut_off() const;
  [[noreturn]] void fail_damaged(std::size_t left, const char* why) const;

 private:
  DataFile file_;
  std::vector<char> block_;
  std::int64_t end_ = 0;  // of the block, in the file
};

}  // namespace trainer::data
