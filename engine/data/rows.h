// Rows: the rows of a data file from front to back, each as the text of one JSON object, whatever the file's format.
// The format is recognised by content, not by name:
//   JSONL        an object on each line; UTF-8, with or without a byte order mark, LF or CRLF
//   JSON array   [{…}, {…}]
//   either of these, compressed by gzip or zstd; several members or frames are read as one text
//   Parquet      the columns are the fields of the object; a missing value is null, lists are arrays, structs and maps
//                are objects, dates, times and decimals are numbers in the column's unit
// Memory does not grow with the file. Text takes a block of the file, one row, and zstd's window (8 MiB by default).
// Parquet takes the footer and, for each column that is read, one page (compressed and decompressed) and a dictionary.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trainer::data {

/// A longer row is a DataError: such a file is damaged or of another kind, and reading on would take all memory.
inline constexpr std::int64_t kMostRowBytes = std::int64_t{64} << 20;

/// Fields of the rows that are wanted.
struct RowColumns {
  std::vector<std::string> needed, optional;
};

/// Rows of a file, from front to back, each the text of one JSON object. One thread at a time.
class Rows {
 public:
  virtual ~Rows() = default;
  /// The next row; false at the end. Blank lines are skipped. A row of JSONL begins with `{` and ends with `}`; the
  /// caller's parser checks everything between. Raises DataError "path:line: what" or "path: row N: what", and IoError;
  /// do not call it again after that.
  virtual bool next(std::string& row) = 0;
  /// Where the last row is: "path:12" (its line) for JSONL, "path: row 12" for arrays and Parquet. Both count from 1.
  virtual std::string place() const = 0;
  /// Bytes of the file read so far, as they are on disk, for progress; at the end the file's size.
  virtual std::int64_t bytes_read() const = 0;
};

/// Raises DataError for a file that is missing, damaged or of another kind, IoError if it cannot be read. A file that
/// is empty or blank has no rows. `columns` saves time: only these columns of a Parquet file are read. A file that
/// lacks one of those that are needed is read whole, so that a message can say what it has; so is every file if none is
/// needed. Rows of text are always whole.
std::unique_ptr<Rows> open_rows(const std::string& path, const RowColumns& columns = {});

}  // namespace trainer::data
