// Files packed by gzip (RFC 1952; any number of members) and zstd (RFC 8878; any number of frames), unpacked from front
// to back. A file that is cut off or damaged is a DataError with the offset in the packed file; what could be unpacked
// before is given first.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/data/data_file.h"
#include "engine/data/rows/bytes.h"

namespace trainer::data {

/// Whether a file that begins with `head` is packed so.
bool is_packed_by_gzip(std::string_view head);
bool is_packed_by_zstd(std::string_view head);

/// Takes 64 KiB.
std::unique_ptr<ByteSource> gzip_bytes(DataFile file);
/// Takes the window that the file says: 8 MiB by default, up to 2 GiB for one packed with --long.
std::unique_ptr<ByteSource> zstd_bytes(DataFile file);

/// The packed bytes, in blocks, and where in the file one is.
class PackedInput {
 public:
  explicit PackedInput(DataFile file) : file_(std::move(file)) {}

  /// The next block; empty at the end.
  std::string_view next();
  /// `left` of the block's bytes have not been unpacked.
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
