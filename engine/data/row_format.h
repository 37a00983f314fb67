// RowFormat: a row of JSON to ids, and which of them count as targets. One for each of `documents`, `chat` and
// `completion`; all of them are pure functions of the row, so rows are encoded once, on any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/rows.h"
#include "engine/data/tokenizer.h"
#include "engine/job/job.h"

namespace trainer::data {

struct EncodedRow {
  std::vector<std::int32_t> ids;
  std::vector<bool> trained;  ///< of each id; the first one is never a target
};

class RowFormat {
 public:
  virtual ~RowFormat() = default;

  /// Raises DataError, without the row's place, for a row that lacks what is asked, and for one that trains nothing.
  virtual EncodedRow encode(const std::string& row) const = 0;
  /// What ids and targets depend on, apart from the row. If this is equal, so are they.
  virtual std::string facts() const = 0;
  /// Ids are below this.
  virtual std::int64_t vocab_size() const = 0;
  /// The columns that it reads of a row. A row may still lack one that is needed.
  virtual RowColumns columns() const = 0;
  /// The ids that an answer to `prompt` goes on from, and those that end one.
  virtual std::vector<std::int32_t> prompt(const std::string& prompt) const = 0;
  virtual std::vector<std::int32_t> ends() const = 0;
  /// To show ids as text.
  virtual std::shared_ptr<const Tokenizer> tokenizer() const = 0;
};

/// REQUIRES: job.is_rows(), and not labelled (labelled.h). Raises DataError and IoError for tokenizers and templates
/// that cannot be used.
std::shared_ptr<const RowFormat> row_format(const DataJob& job);

/// The ids that end a text of the job's data, ascending. REQUIRES: job.is_rows(). Raises as row_format does.
std::vector<std::int32_t> ends_of_text(const DataJob& job);

/// The folder whose chat template and special tokens belong to the tokenizer of a job. REQUIRES: it is a file.
std::string folder_of_tokenizer(const DataJob& job);

}  // namespace trainer::data
