// Labelled rows: a text and a label, for graphs whose head classifies whole texts or gives a number for each. A row is
// kept as its label, two ids that are the halves of an f32, and the ids of its text behind them, so that rows are
// encoded once, into the cache, before it is known what the graph makes of a label.
//
// Fields of a sample: tokens i32 [seq_len]; targets, i32 or f32; and one that says what is padding:
//   lengths i32     the text begins the row and is so long: for encoders, which read their first token
//   documents i32 [seq_len]   the text ends the row, 1 in it and 0 in the padding before it: for decoders, whose last
//                   token then is at the same place in every row. Attention keeps documents apart, and positions begin
//                   again in the text, so the padding changes nothing.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/row_format.h"
#include "engine/data/row_samples.h"
#include "engine/data/row_store.h"

namespace trainer::data {

/// Rows {"text", "label"}. A label is a number, or the name of a class that config.json beside the tokenizer knows.
std::shared_ptr<const RowFormat> labelled_format(const DataJob& job);

/// The labels that are names of classes, which config.json beside the tokenizer has.
std::map<std::string, double> label_names(const DataJob& job);

/// The id of padding that config.json beside the tokenizer names.
std::optional<std::int32_t> padding_of(const DataJob& job);

/// A text without padding, and its label.
struct LabelledText {
  std::vector<std::int32_t> ids;
  float label = 0;
};

class LabelledSamples final : public Dataset {
 public:
  struct Options {
    std::int64_t seq_len = 0;
    TooLong too_long = TooLong::error;
    bool at_end = false;                ///< texts end their rows: `documents`; else `lengths`
    DType target_dtype = DType::i32;    ///< i32: classes; f32: numbers
    std::int64_t classes = 0;           ///< 0: unknown
    std::optional<std::int32_t> pad{};  ///< at_end: the token that is read is the last one that is not this
  };

  /// Rows [first, first + count) of the store.
  LabelledSamples(std::shared_ptr<const RowStore> rows, std::int64_t first, std::int64_t count, const Options& options);

  /// The first row that cannot be a sample, and why; -1: there is none.
  std::int64_t bad_row() const { return bad_row_; }
  const std::string& mistake() const { return mistake_; }

  /// What became of rows; ids and targets are those of texts.
  const RowCounts& counts() const { return counts_; }
  LabelledText text_of(std::int64_t sample) const;

  std::int64_t num_samples() const override { return static_cast<std::int64_t>(samples_.size()); }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(std::int64_t sample, std::span<std::byte* const> out) const override;

 private:
  struct Sample {
    std::int64_t first = 0, count = 0;  // ids of the text, among those of all rows
    float label = 0;
  };
  std::string add(std::int64_t row);

  std::shared_ptr<const RowStore> rows_;
  const Options options_;
  std::vector<SampleField> fields_;
  std::vector<Sample> samples_;
  RowCounts counts_;
  std::int64_t bad_row_ = -1;
  std::string mistake_;
};

}  // namespace trainer::data
