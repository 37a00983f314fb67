// Data of a job: from its data section to a training and a validation dataset.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/data/dataset.h"
#include "engine/data/id_stream.h"
#include "engine/data/labelled.h"
#include "engine/data/row_samples.h"
#include "engine/data/tokenizer.h"
#include "engine/job/job.h"

namespace trainer::data {

/// What a graph says of the inputs that the data feeds.
struct GraphInputs {
  DType target_dtype = DType::i32;    ///< of a table's targets, and labels: i32 are class ids, f32 values
  std::int64_t id_limit = 0;          ///< ids must be below it: the vocabulary's rows, or the classes; 0 if unknown
  std::vector<SampleField> fields{};  ///< of `tensors` and `labelled`: all that it reads of a sample
  std::int64_t classes = 0;           ///< of `labelled`; 0 if unknown
};

struct Data {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> val;                                       ///< null if there is none
  std::shared_ptr<const Tokenizer> tokenizer;                               ///< of text, else null
  std::vector<SamplePart> parts{};                                          ///< of `train`
  std::vector<std::shared_ptr<const RowSamples>> train_rows{}, val_rows{};  ///< of rows: those of each part

  std::vector<std::shared_ptr<const LabelledSamples>> train_labelled{}, val_labelled{};  ///< of labelled rows

  bool has_rows() const { return !train_rows.empty() || !train_labelled.empty(); }
};

/// A DataError or an IoError of the data that the job names at `key`, as "data.val".
struct BadData : DataError {
  BadData(std::string key, const std::string& what) : DataError(what), key(std::move(key)) {}
  std::string key;
};
struct UnreadableData : IoError {
  UnreadableData(std::string key, const std::string& what) : IoError(what), key(std::move(key)) {}
  std::string key;
};

/// Opens the files. Raises BadData for a file that is missing or malformed and for data too short for one sample,
/// UnreadableData for what the system refuses. Token ids are checked as `ids` says; everything else is checked in full,
/// but for what only reading it all would tell.
Data open_data(const DataJob& job, const GraphInputs& inputs, IdStream::Check ids = IdStream::Check::samples,
               const Tokenizing& tokenizing = {});

/// RowCounts::summary of the training rows, or with `val` of the validation rows; empty if the data has no rows.
std::string summary_of_rows(const Data& data, std::int64_t seq_len, bool val = false);

/// Whether text becomes ids by a tokenizer.json.
bool is_tokenized(const DataJob& job);

/// Whether its ids are made once, for the cache: text under a tokenizer.json, and rows.
bool is_cached(const DataJob& job);

/// Puts the ids of text and rows into the cache, so that open_data only opens them; does nothing for data
/// that has no such step. `id_limit` as in GraphInputs. Raises what open_data raises.
void tokenize_data(const DataJob& job, std::int64_t id_limit, const Tokenizing& tokenizing);

}  // namespace trainer::data
