// How pairs are read and encoded.
#include "engine/data/preference_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/chat/chat_format.h"
#include "engine/core/error.h"
#include "engine/data/row_parts.h"

namespace trainer::data {
namespace {

using Ids = std::vector<std::int32_t>;

std::size_t common_prefix(const Ids& a, const Ids& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

EncodedRow pair_of(const Ids& prompt, const Ids& chosen, const Ids& rejected) {
  const std::size_t shared = std::min(common_prefix(prompt, chosen), common_prefix(prompt, rejected));
  EncodedRow row;
  for (const Ids* ids : {&chosen, &rejected}) {
    if (ids->size() < 2 || ids->size() == shared)
      throw DataError(std::string("its ") + (ids == &chosen ? "chosen" : "rejected") + " answer is empty");
    row.second = row.ids.size();
    row.ids.insert(row.ids.end(), ids->begin(), ids->end());
    for (std::size_t i = 0; i < ids->size(); ++i) row.trained.push_back(i > 0 && i >= shared);
  }
  return row;
}

class Preferences final : public RowFormat {
 public:
  explicit Preferences(const DataJob& job) : job_(job), text_(job) {
    if (job.tokenizer == trainer::Tokenizer::bytes) {
      no_template_ = "data.tokenizer is bytes, which have no chat template";
      return;
    }
    try {
      format_ = chat::ChatFormat::of_folder(folder_of_tokenizer(job), job.chat_template);
    } catch (const DataError& error) {
      if (!job.chat_template.empty()) throw;
      no_template_ = error.what();
    }
  }

  EncodedRow encode(const std::string& row) const override {
    const RowJson json = object_of(row);
    const RowJson &chosen = answer_in(json, "chosen"), &rejected = answer_in(json, "rejected");
    if (chosen.is_array() != rejected.is_array())
      throw DataError("of \"" + named(job_, "chosen") + "\" and \"" + named(job_, "rejected") +
                      "\" one is text and one a list of messages");
    return chosen.is_array() ? of_messages(json, chosen, rejected) : of_texts(json);
  }

  std::string facts() const override {
    std::string facts = "rows of preferences\n" + text_.facts();
    if (format_) facts += "\n" + format_->facts();
    return facts + facts_of_names(job_);
  }
  std::int64_t vocab_size() const override { return text_.tokenizer()->vocab_size(); }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return text_.tokenizer(); }
  int sequences() const override { return 2; }
  // As a row of text.
  std::vector<std::int32_t> prompt(const std::string& prompt) const override { return text_.open_ids(prompt); }
  std::vector<std::int32_t> ends() const override { return {text_.end()}; }
  RowColumns columns() const override {
    RowColumns columns{{named(job_, "chosen"), named(job_, "rejected")}, {named(job_, "prompt")}};
    for (const char* more : kBesideMessages) columns.optional.push_back(named(job_, more));
    return columns;
  }

 private:
  const RowJson& answer_in(const RowJson& row, const char* what) const {
    const std::string name = named(job_, what);
    const auto found = row.find(name);
    if (found == row.end()) missing(row, what, name);
    if (!found->is_string() && !found->is_array())
      throw DataError("\"" + name + "\" is neither text nor a list of messages");
    return *found;
  }

  EncodedRow of_texts(const RowJson& row) const {
    const std::string& prompt = text_at(row, job_, "prompt");
    return pair_of(text_.open_ids(prompt), text_.ids(prompt + text_at(row, job_, "chosen")),
                   text_.ids(prompt + text_at(row, job_, "rejected")));
  }

  EncodedRow of_messages(const RowJson& row, const RowJson& chosen, const RowJson& rejected) const {
    if (!format_) throw DataError("lists of messages need a chat template: " + no_template_);
    const std::string name = named(job_, "prompt");
    const auto found = row.find(name);
    RowJson prompt = RowJson::array();
    std::size_t shared = 0;  // messages of the answers that are the prompt
    if (found != row.end() && !found->is_null()) {
      if (!found->is_array())
        throw DataError("\"" + name +
                        "\" is no list of messages, which its answers are; without a prompt it is the "
                        "messages that both answers begin with");
      prompt = *found;
    } else {
      while (shared < chosen.size() && shared < rejected.size() && chosen[shared] == rejected[shared])
        prompt.push_back(chosen[shared++]);
    }
    if (prompt.empty()) throw DataError("has no prompt: neither \"" + name + "\" nor messages that both answers share");
    const auto encoded = [&](const RowJson& answer) {
      RowJson messages = prompt;
      messages.insert(messages.end(), answer.begin() + static_cast<std::ptrdiff_t>(shared), answer.end());
      return format_->encode(conversation(row, messages), chat::TrainOn::all).ids;
    };
    return pair_of(format_->prompt(conversation(row, prompt)), encoded(chosen), encoded(rejected));
  }

  chat::Conversation conversation(const RowJson& row, const RowJson& messages) const {
    return chat::Conversation::parse(conversation_of(job_, row, messages));
  }

  const DataJob job_;
  const TextToIds text_;
  std::shared_ptr<const chat::ChatFormat> format_;  // null: there is no template
  std::string no_template_;                         // why
};

}  // namespace

std::shared_ptr<const RowFormat> preference_rows(const DataJob& job) { return std::make_shared<Preferences>(job); }

}  // namespace trainer::data
