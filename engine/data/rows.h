// Rows: the rows of a data file from front to back, each as the text of one JSON object, whatever the file's format.
// The format is recognised by content, not by name:
//   JSONL        an object on each line; UTF-8, with or without a byte order mark, LF or CRLF
//   JSON array   [{…}, {…}]
//   gzip, zstd   of one of these; several members or frames are one text
// Memory is bounded by a block of the file, a row, and zstd's window (zstd's default is 8 MiB), whatever the file's
// length.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trainer::data {

/// A longer row is a DataError: it is a file of another kind or a damaged one, and reading it would take the memory.
inline constexpr std::int64_t kMostRowBytes = std::int64_t{64} << 20;

/// Rows of a file, from front to back, each the text of one JSON object. One thread at a time.
class Rows {
 public:
  virtual ~Rows() = default;
  /// The next row; false at the end. Blank lines are skipped. A row of JSONL begins with `{` and ends with `}`; what is
  /// between is as the file has it, and the caller's parser checks it. Raises DataError "path:line: what" or
  /// "path: row N: what", and IoError. Not to be called again after it raised.
  virtual bool next(std::string& row) = 0;
  /// Where the last row is: "path:12" (a line) of JSONL, "path: row 12" of an array. Both count from 1.
  virtual std::string place() const = 0;
  /// Bytes of the file read so far (packed ones, of a packed file), for progress; at the end all of them.
  virtual std::int64_t bytes_read() const = 0;
};

/// Raises DataError for a file that is missing or of another kind, IoError if it cannot be read. A file that is empty
/// or blank has no rows.
std::unique_ptr<Rows> open_rows(const std::string& path);

}  // namespace trainer::data
