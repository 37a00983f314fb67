// DataFile: one file of data, from which parts are read by offset. Reads, not a map: a file that becomes shorter or
// fails under a run is then an error that names it, where a map would end the process with SIGBUS, and a window of some
// KB costs the same either way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/file.h"

namespace trainer::data {

class DataFile {
 public:
  /// Whether a large file stays open; one that does not is opened for each read. (A process may have some 1000 files
  /// open.) Small files are held in memory either way.
  enum class Keep { open, closed };

  /// Raises DataError if there is no such regular file, IoError if it cannot be read.
  explicit DataFile(std::string path, Keep keep = Keep::open);

  const std::string& path() const { return path_; }
  /// When it was opened; what is appended later is not seen.
  std::int64_t bytes() const { return bytes_; }
  /// Copies [offset, offset + bytes). Raises IoError if the file has become shorter. Any number of threads.
  /// REQUIRES: the part lies in bytes().
  void read(std::int64_t offset, void* out, std::size_t bytes) const;
  /// The first bytes, at most `most`.
  std::string head(std::size_t most) const;
  /// Raises a DataError "path: offset N: what".
  [[noreturn]] void fail(std::int64_t offset, const std::string& what) const;

 private:
  std::string path_;
  std::int64_t bytes_ = 0;
  std::string text_;  // of a small file
  Descriptor file_;   // of a large one that stays open
};

/// A file from front to back, in blocks.
class BlockReader {
 public:
  explicit BlockReader(const DataFile& file) : file_(file) {}

  /// The bytes from `keep_from` on, an offset in the file that the last block reached, followed by more of the file: at
  /// least one byte, if there is one. Valid until the next call.
  std::string_view next(std::int64_t keep_from);
  /// Whether the last block reached the end of the file.
  bool at_end() const { return end_ == file_.bytes(); }

 private:
  const DataFile& file_;
  std::string block_;
  std::int64_t first_ = 0, end_ = 0;  // of the block, in the file
};

}  // namespace trainer::data
