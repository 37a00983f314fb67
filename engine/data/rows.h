// Rows: the rows of a data file from front to back, each as the text of one JSON object, whatever the file's format.
// The format is recognised by content, not by name:
//   JSONL        an object on each line; UTF-8, with or without a byte order mark, LF or CRLF
//   JSON array   [{…}, {…}]
//   gzip, zstd   of one of these; several members or frames are one text
//   Parquet      a row's columns as the fields of an object: null where there is no value, lists as arrays, structs and
//                maps as objects, dates, times and decimals as their numbers
// Memory is bounded, whatever the file's length: of text a block of the file and a row, and zstd's window (8 MiB by its
// default); of Parquet the footer and, for each column that is read, a page (packed and unpacked) and a dictionary.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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
  /// Where the last row is: "path:12" (a line) of JSONL, "path: row 12" of an array and of Parquet. Both count from 1.
  virtual std::string place() const = 0;
  /// Bytes of the file read so far (packed ones, of a packed file), for progress; at the end all of them.
  virtual std::int64_t bytes_read() const = 0;
};

/// Raises DataError for a file that is missing, damaged or of another kind, IoError if it cannot be read. A file that
/// is empty or blank has no rows. `columns` saves time: of Parquet only those columns are read and given, and a name
/// that the file does not have is left out; none means all. Rows of text are given whole.
std::unique_ptr<Rows> open_rows(const std::string& path, const std::vector<std::string>& columns = {});

}  // namespace trainer::data
