// RowFormat: a row of JSON to ids, and which of them count as targets. All formats are pure functions of the row, so
// rows are encoded once, on any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/rows.h"
#include "engine/data/tokenizer.h"

namespace trainer::data {

struct EncodedRow {
  std::vector<std::int32_t> ids;
  std::vector<bool> trained;  ///< of each id; the first one of a sequence is never a target
  std::size_t second = 0;     ///< of a pair: where the ids of its second sequence begin; 0: the row is one sequence
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
  /// Sequences of a row: 2 of pairs.
  virtual int sequences() const { return 1; }
  /// To show ids as text.
  virtual std::shared_ptr<const Tokenizer> tokenizer() const = 0;
};

}  // namespace trainer::data
