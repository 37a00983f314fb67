// What the formats of rows share: members of a row by the names that the job gives them, and text as ids.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"
#include "engine/job/job.h"

namespace trainer::data {

using RowJson = nlohmann::ordered_json;  // templates see members in the order of the row

/// The name that rows have for a part: data.fields, or its own.
std::string named(const DataJob& job, const std::string& what);

/// What a row may have beside its messages, and templates read.
inline constexpr const char* kBesideMessages[] = {"tools", "documents", "chat_template_kwargs"};

/// Raises DataError unless `row` is an object.
RowJson object_of(const std::string& row);

/// Raises DataError: the row has no member for `what`, which the job calls `name`.
[[noreturn]] void missing(const RowJson& row, const std::string& what, const std::string& name);

/// The text of a part. Raises DataError.
const std::string& text_at(const RowJson& row, const DataJob& job, const std::string& what);

/// A message, the index-th of its list, under the names and roles that templates know; all other members stay. Raises
/// DataError.
RowJson message_of(const DataJob& job, const RowJson& message, std::size_t index);

/// The conversation {"messages": [{"role", "content", …}, …], …} of messages and of what `row` has beside them. Raises
/// DataError.
std::string conversation_of(const DataJob& job, const RowJson& row, const RowJson& messages);

/// What the names and roles of the job add to the facts of a format.
std::string facts_of_names(const DataJob& job);

/// Of text: ids, and an end-of-text token behind them.
class TextToIds {
 public:
  /// Raises DataError and IoError.
  explicit TextToIds(const DataJob& job);

  /// `first_bytes`: of each id, the first byte of the text that it stands for.
  std::vector<std::int32_t> ids(const std::string& text, std::vector<std::uint32_t>* first_bytes = nullptr) const;
  /// Without the end-of-text token, if the tokenizer itself adds none.
  std::vector<std::int32_t> open_ids(const std::string& text, std::vector<std::uint32_t>* first_bytes = nullptr) const;

  std::int32_t end() const { return end_; }
  std::string facts() const { return tokenizer_->json() + " end " + std::to_string(end_); }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const FileTokenizer> file_;  // null: bytes
  std::int32_t end_ = 0;
};

/// The folder whose chat template and special tokens belong to the tokenizer of a job. REQUIRES: it is a file.
std::string folder_of_tokenizer(const DataJob& job);

}  // namespace trainer::data
