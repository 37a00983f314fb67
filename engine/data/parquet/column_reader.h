// ColumnReader: the entries of one column of a row group, page by page. An entry is two levels and, at the highest
// definition level, a value. In memory are one page as it is in the file, its decompressed contents, and the
// dictionary.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/data/data_file.h"
#include "engine/data/parquet/codec.h"
#include "engine/data/parquet/hybrid_decoder.h"
#include "engine/data/parquet/metadata.h"
#include "engine/data/parquet/schema.h"
#include "engine/data/parquet/value_decoder.h"
#include "engine/data/rows/bytes.h"

namespace trainer::data::parquet {

/// Larger pages are refused; writers usually make pages of 1 MiB.
inline constexpr std::int64_t kMostPageBytes = std::int64_t{1} << 30;

class ColumnReader {
 public:
  /// Starts at the first entry of the chunk. Every function may raise Damaged and Unsupported. REQUIRES: `file` and
  /// `leaf` outlive it.
  ColumnReader(const DataFile& file, const Leaf& leaf, const ColumnChunk& chunk);

  /// Levels of the current entry. After the last one the repetition is 0 and the definition is -1.
  int definition() const { return definition_; }
  int repetition() const { return repetition_; }
  bool at_end() const { return definition_ < 0; }
  /// The current entry's value; call it once. REQUIRES: definition() is the leaf's highest.
  std::string_view value() {
    if (!decoder_) make_decoder();
    return decoder_->next();
  }
  void advance() {
    if (left_in_page_ == 0 && !next_page()) return;
    --left_in_page_;
    if (leaf_->most_repetition > 0) repetition_ = level(repetitions_, leaf_->most_repetition);
    if (leaf_->most_definition > 0) definition_ = level(definitions_, leaf_->most_definition);
  }

  const Leaf& leaf() const { return *leaf_; }

 private:
  static int level(HybridDecoder& levels, int most) {
    const auto level = static_cast<int>(levels.next());
    if (level > most)
      throw Damaged("a page has a level of " + std::to_string(level) + ", above " + std::to_string(most));
    return level;
  }

  bool next_page();
  PageHeader next_header();
  std::string_view next_body(const PageHeader& page);
  std::string_view decompressed(const PageHeader& page, std::string_view compressed, PageBuffer& buffer);
  void begin_dictionary(const PageHeader& page, std::string_view body);
  void begin_data(const PageHeader& page, std::string_view body);
  void begin_data_v2(const PageHeader& page, std::string_view body);
  void make_decoder();

  const Leaf* leaf_;
  Codec codec_;
  Window window_;               // over the chunk's bytes
  std::size_t body_bytes_ = 0;  // of the current page, which the window begins with
  PageBuffer page_, dictionary_page_;
  std::optional<Dictionary> dictionary_;
  HybridDecoder repetitions_, definitions_;
  Encoding encoding_ = Encoding::plain;
  std::string_view values_;
  std::unique_ptr<ValueDecoder> decoder_;  // made for the first value: a page of nulls may have no bytes for them
  std::int64_t left_in_chunk_, left_in_page_ = 0;
  int definition_ = 0, repetition_ = 0;
};

}  // namespace trainer::data::parquet
