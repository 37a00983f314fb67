// How rows become questions, and how an answer is compared.
#include "engine/data/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/data/row_parts.h"
#include "engine/data/rows.h"
#include "engine/tokenizer/text_tokenizer.h"

namespace trainer::data {
namespace {

constexpr std::size_t kMostMistakes = 10;

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

/// The text of a member. Names are those of questions: data.fields is about the rows of the job.
const std::string& text_of(const RowJson& row, const char* name) {
  const auto found = row.find(name);
  if (found == row.end()) throw DataError(fmt::format("has no \"{}\"; a question has \"prompt\" and \"answer\"", name));
  if (!found->is_string()) throw DataError(fmt::format("\"{}\" is no string", name));
  return found->get_ref<const std::string&>();
}

}  // namespace

Questions::Questions(const DataJob& job, const GenerateJob& generate, std::int64_t id_limit)
    : format_(row_format(job)), max_tokens_(generate.max_tokens), ends_(format_->ends()) {
  const std::unique_ptr<Rows> rows = open_rows(generate.file, {{"prompt", "answer"}, {}});
  std::vector<std::string> mistakes;
  for (std::string row; mistakes.size() < kMostMistakes && rows->next(row);) {
    try {
      add(row, job.seq_len, id_limit);
    } catch (const DataError& error) {
      mistakes.push_back(rows->place() + ": " + error.what());
    }
  }
  if (!mistakes.empty()) throw DataError(fmt::format("{}", fmt::join(mistakes, "\n")));
  if (questions_.empty()) throw DataError(generate.file + ": has no rows");
}

void Questions::add(const std::string& row, std::int64_t seq_len, std::int64_t id_limit) {
  const RowJson json = object_of(row);
  Question question{format_->prompt(text_of(json, "prompt")), text_of(json, "answer")};
  if (question.prompt.empty()) throw DataError("its prompt is empty");
  const auto length = static_cast<std::int64_t>(question.prompt.size());
  if (length + max_tokens_ > seq_len)
    throw DataError(
        fmt::format("its prompt has {} tokens, and with {} of an answer (eval.generate.max_tokens) that is "
                    "more than data.seq_len: {}",
                    length, max_tokens_, seq_len));
  const std::int32_t largest = *std::ranges::max_element(question.prompt);
  if (id_limit > 0 && largest >= id_limit)
    throw DataError(fmt::format("its prompt has the id {}, and the model has {}", largest, id_limit));
  questions_.push_back(std::move(question));
}

bool Questions::is_end(std::int32_t id) const { return std::ranges::find(ends_, id) != ends_.end(); }

bool Questions::is_right(std::int64_t index, std::span<const std::int32_t> ids) const {
  const std::shared_ptr<const Tokenizer> tokenizer = format_->tokenizer();
  const auto* file = dynamic_cast<const FileTokenizer*>(tokenizer.get());
  const std::string text =
      file != nullptr ? file->text_tokenizer().decode(ids, /*skip_special=*/true) : tokenizer->decode(ids);
  return stripped(text) == stripped((*this)[index].answer);
}

}  // namespace trainer::data
