// RowStore: all rows of a list of files, as ids and targets. Files are read and encoded once, into the cache of ids
// (id_cache.h) where there is one; then any part of any row can be read, and lengths are known.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/data/row_format.h"
#include "engine/data/token_stream.h"

namespace trainer::data {

class RowStore {
 public:
  /// Codes as encoded_rows makes them, of rows of so many sequences each.
  explicit RowStore(std::shared_ptr<const TokenStream> codes, int sequences = 1);

  int sequences() const { return sequences_; }
  std::int64_t num_rows() const { return static_cast<std::int64_t>(starts_.size() - 1) / sequences_; }
  std::int64_t num_ids() const { return starts_.back(); }
  /// Of a sequence of the row.
  std::int64_t length(std::int64_t row, int sequence = 0) const {
    return start(row, sequence + 1) - start(row, sequence);
  }
  /// A sequence's first id among the ids of all rows.
  std::int64_t start(std::int64_t row, int sequence = 0) const {
    return starts_[static_cast<std::size_t>(row * sequences_ + sequence)];
  }

  /// Ids [first, first + count) of all rows, and 1 for each that is a target, else 0. Any number of threads.
  void read(std::int64_t first, std::int64_t count, std::int32_t* ids, std::uint8_t* trained) const;

 private:
  std::shared_ptr<const TokenStream> codes_;
  int sequences_;
  std::vector<std::int64_t> starts_;  // of each sequence, and the end
};

/// The rows of files, in order. Raises DataError that names all mistakes in rows, each with its place, up to ten of
/// them; DataError and IoError for files that cannot be read.
std::shared_ptr<const RowStore> encoded_rows(const std::vector<std::string>& paths, const RowFormat& format,
                                             const Tokenizing& options);

/// Encodes the rows into the cache of ids, for encoded_rows to find there. Raises as it does.
void cache_rows(const std::vector<std::string>& paths, const RowFormat& format, const Tokenizing& options);

/// "path:12": where a row of the files is. It reads them up to there.
std::string place_of_row(const std::vector<std::string>& paths, std::int64_t row);

}  // namespace trainer::data
