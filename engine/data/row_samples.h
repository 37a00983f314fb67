// RowSamples: rows as samples of one length. A sample is a window of seq_len + 1 ids: the inputs are all but the last
// one, the targets all but the first one. It holds one row, or under packing as many as fit; what is left is padding.
// Invariant: an id is a target at most once, and only where the id before it belongs to the same row.
//
// Fields: tokens, targets and, under packing, documents, all i32 [seq_len]. A target that does not count is kIgnored. A
// document is its number in the sample, from 0; of padding it is kPadding. Of rows of two sequences a sample is one
// row, and its fields are [2, seq_len]: a window of each sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/row_store.h"

namespace trainer::data {

inline constexpr std::int32_t kIgnored = -100, kPadding = -1;

/// A run of ids of one row, all in one sample.
struct Segment {
  std::int64_t first = 0, count = 0;  ///< among the ids of all rows
  std::int64_t row = 0;
};

/// What a sample holds, id by id, without padding: the inputs and the last target.
struct SampleIds {
  std::vector<std::int32_t> ids, documents;  ///< of a pair the second sequence is document 1
  std::vector<std::uint8_t> trained;         ///< 1 for an id that counts as a target
};

/// What became of rows that are longer than a sample, and what the samples hold.
struct RowCounts {
  std::int64_t rows = 0, ids = 0;                      ///< of the files
  int sequences = 1;                                   ///< of a row
  std::int64_t dropped = 0, truncated = 0, split = 0;  ///< rows
  std::int64_t without_targets = 0;  ///< pieces of rows that were left out since nothing of them would be trained
  std::int64_t samples = 0, room = 0, held = 0, targets = 0;  ///< ids for which samples have room; in them; targets

  RowCounts& operator+=(const RowCounts& other);
  /// Two lines of text: the rows and ids of the files, and the samples of seq_len tokens that they became.
  std::string summary(std::int64_t seq_len) const;
};

class RowSamples final : public Dataset {
 public:
  struct Options {
    std::int64_t seq_len = 0;
    Packing packing = Packing::none;
    TooLong too_long = TooLong::error;
  };

  /// Rows [first, first + count) of the store. Under TooLong::error `first_too_long` is set to the first row that does
  /// not fit, and the samples lack it.
  RowSamples(std::shared_ptr<const RowStore> rows, std::int64_t first, std::int64_t count, const Options& options);

  std::int64_t num_samples() const override { return static_cast<std::int64_t>(begins_.size()) - 1; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(std::int64_t sample, std::span<std::byte* const> out) const override;

  SampleIds ids_of(std::int64_t sample) const;
  const RowCounts& counts() const { return counts_; }
  std::int64_t first_too_long() const { return first_too_long_; }  ///< -1: none

 private:
  void cut(std::int64_t row, const Options& options);
  void cut_pair(std::int64_t row, const Options& options);
  void add(const std::vector<Segment>& segments, bool cut);
  void add(std::int64_t row, std::int64_t first, std::int64_t count, bool cut);
  void pack();

  std::shared_ptr<const RowStore> rows_;
  const std::int64_t seq_len_;
  std::vector<SampleField> fields_;
  std::vector<Segment> segments_;    // of all samples, one after the other
  std::vector<std::size_t> begins_;  // of each sample's segments, and the end
  RowCounts counts_;
  std::int64_t first_too_long_ = -1;
};

/// Bins of at most `room` for things of these sizes, each in [1, room]: best-fit decreasing. Gives the bin of each
/// thing; bins are numbered by the first thing in them.
std::vector<std::int64_t> packed(std::span<const std::int64_t> sizes, std::int64_t room);

}  // namespace trainer::data
