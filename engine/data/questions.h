// Questions: prompts and the answers that are wanted, for evaluations that generate. A prompt is rendered as a row of
// the job's data would be: in `chat` it is a user's message behind which the assistant begins, in `completion` and
// `documents` it is the beginning of a text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/data/row_format.h"
#include "engine/job/job.h"

namespace trainer::data {

struct Question {
  std::vector<std::int32_t> prompt;
  std::string answer;
};

class Questions {
 public:
  /// Reads a file of rows {"prompt", "answer"}. Every prompt leaves room for `max_tokens` in `seq_len`, and has ids
  /// below `id_limit` (0: unknown). Raises DataError that names up to ten rows with mistakes, each with its place, and
  /// IoError. REQUIRES: job.is_rows().
  Questions(const DataJob& job, const GenerateJob& generate, std::int64_t id_limit);

  std::int64_t size() const { return static_cast<std::int64_t>(questions_.size()); }
  const Question& operator[](std::int64_t index) const { return questions_[static_cast<std::size_t>(index)]; }
  std::int64_t max_tokens() const { return max_tokens_; }
  /// Ids that can be generated are below this.
  std::int64_t vocab_size() const { return format_->vocab_size(); }
  /// Whether the id ends an answer.
  bool is_end(std::int32_t id) const;
  /// Whether the generated ids are the answer, word for word. White space at both ends does not count.
  bool is_right(std::int64_t index, std::span<const std::int32_t> ids) const;

 private:
  void add(const std::string& row, std::int64_t seq_len, std::int64_t id_limit);

  std::shared_ptr<const RowFormat> format_;
  std::int64_t max_tokens_;
  std::vector<std::int32_t> ends_;
  std::vector<Question> questions_;
};

}  // namespace trainer::data
