// Formats of one sequence. Text becomes ids with the special tokens that the tokenizer adds to a text (as a first one),
// and ends with the end-of-text token; special tokens that are written in a row are text.
#include "engine/data/row_format.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "engine/chat/chat_format.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/data/preference_rows.h"
#include "engine/data/row_parts.h"
#include "engine/tokenizer/text_tokenizer.h"

namespace trainer::data {
namespace {

class OfText : public RowFormat {
 public:
  explicit OfText(const DataJob& job) : job_(job), text_(job) {}

  std::int64_t vocab_size() const override { return text_.tokenizer()->vocab_size(); }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return text_.tokenizer(); }
  std::vector<std::int32_t> prompt(const std::string& prompt) const override {
    std::vector<std::int32_t> ids = text_.ids(prompt);
    ids.pop_back();
    return ids;
  }
  std::vector<std::int32_t> ends() const override { return {text_.end()}; }

 protected:
  std::string facts_of(const std::string& format) const {
    return "rows of " + format + "\n" + text_.facts() + facts_of_names(job_);
  }
  RowColumns columns_of(std::initializer_list<const char*> fields) const {
    RowColumns columns;
    for (const char* field : fields) columns.needed.push_back(named(job_, field));
    return columns;
  }

  const DataJob job_;
  const TextToIds text_;
};

class Documents final : public OfText {
 public:
  using OfText::OfText;

  EncodedRow encode(const std::string& row) const override {
    const RowJson json = object_of(row);
    EncodedRow out{text_.ids(text_at(json, job_, "text")), {}};
    if (out.ids.size() < 2) throw DataError("its text is empty");
    out.trained.assign(out.ids.size(), true);
    out.trained.front() = false;
    return out;
  }
  std::string facts() const override { return facts_of("documents"); }
  RowColumns columns() const override { return columns_of({"text"}); }
};

/// Prompt and completion are one text. An id belongs to the part in which its first byte is.
class Completions final : public OfText {
 public:
  using OfText::OfText;

  EncodedRow encode(const std::string& row) const override {
    const RowJson json = object_of(row);
    const std::string& prompt = text_at(json, job_, "prompt");
    std::vector<std::uint32_t> first_bytes;
    EncodedRow out{text_.ids(prompt + text_at(json, job_, "completion"), &first_bytes), {}};
    if (out.ids.size() < 2) throw DataError("its prompt and completion are empty");
    const bool all = job_.train_on == TrainOn::all;
    for (const std::uint32_t first : first_bytes) out.trained.push_back(all || first >= prompt.size());
    out.trained.front() = false;
    return out;
  }
  std::string facts() const override {
    return facts_of("completions") + "\ntrains " + std::string(name_of(job_.train_on));
  }
  RowColumns columns() const override { return columns_of({"prompt", "completion"}); }
};

class Chats final : public RowFormat {
 public:
  explicit Chats(const DataJob& job)
      : job_(job),
        format_(chat::ChatFormat::of_folder(folder_of_tokenizer(job), job.chat_template)),
        tokenizer_(std::make_shared<FileTokenizer>(job.tokenizer_file)) {}

  EncodedRow encode(const std::string& row) const override {
    const chat::TrainOn train_on = job_.train_on == TrainOn::last  ? chat::TrainOn::last
                                   : job_.train_on == TrainOn::all ? chat::TrainOn::all
                                                                   : chat::TrainOn::assistant;
    chat::EncodedChat chat = format_->encode(chat::Conversation::parse(conversation_in(row)), train_on);
    if (chat.ids.size() < 2) throw DataError("the chat template writes nothing for it");
    chat.trained.front() = false;
    if (std::ranges::find(chat.trained, true) == chat.trained.end())
      throw DataError(job_.train_on == TrainOn::last ? "has nothing to train: its last message is not the assistant's"
                                                     : "has nothing to train: no message is the assistant's");
    return {std::move(chat.ids), std::move(chat.trained)};
  }

  std::string facts() const override {
    return "chats\n" + tokenizer_->json() + "\n" + format_->facts() + "\ntrains " +
           std::string(name_of(job_.train_on)) + facts_of_names(job_);
  }
  std::int64_t vocab_size() const override { return tokenizer_->vocab_size(); }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return tokenizer_; }
  RowColumns columns() const override {
    RowColumns columns;
    const auto name = [&](const char* field) { return named(job_, field); };
    if (job_.fields.contains("instruction")) {
      columns = {{name("instruction"), name("output")}, {}};
      for (const char* field : {"input", "system"})
        if (job_.fields.contains(field)) columns.optional.push_back(name(field));
    } else {
      columns = {{name("messages")}, {}};
      for (const char* field : kBesideMessages) columns.optional.push_back(name(field));
    }
    return columns;
  }
  std::vector<std::int32_t> prompt(const std::string& prompt) const override {
    chat::Conversation conversation;
    conversation.add("user", prompt);
    return format_->prompt(conversation);
  }
  std::vector<std::int32_t> ends() const override { return format_->stop_ids(); }

 private:
  std::string conversation_in(const std::string& row) const {
    const RowJson json = object_of(row);
    if (job_.fields.contains("instruction")) return of_instruction(json).dump();
    const std::string name = named(job_, "messages");
    const auto messages = json.find(name);
    if (messages == json.end()) missing(json, "messages", name);
    if (!messages->is_array() || messages->empty()) throw DataError("\"" + name + "\" is no list of messages");
    return conversation_of(job_, json, *messages);
  }

  /// Alpaca's rows: an instruction, perhaps with an input, and the output.
  RowJson of_instruction(const RowJson& row) const {
    RowJson messages = RowJson::array();
    const auto optional = [&](const char* what) -> std::string {
      if (!job_.fields.contains(what)) return "";
      const auto found = row.find(named(job_, what));
      if (found == row.end() || found->is_null()) return "";
      if (!found->is_string()) throw DataError("\"" + named(job_, what) + "\" is no string");
      return found->get<std::string>();
    };
    if (const std::string system = optional("system"); !system.empty())
      messages.push_back({{"role", "system"}, {"content", system}});
    const std::string input = optional("input");
    messages.push_back(
        {{"role", "user"}, {"content", text_at(row, job_, "instruction") + (input.empty() ? "" : "\n" + input)}});
    messages.push_back({{"role", "assistant"}, {"content", text_at(row, job_, "output")}});
    return {{"messages", std::move(messages)}};
  }

  const DataJob job_;
  const std::shared_ptr<const chat::ChatFormat> format_;
  const std::shared_ptr<const FileTokenizer> tokenizer_;
};

}  // namespace

std::vector<std::int32_t> ends_of_text(const DataJob& job) {
  CHECK(job.is_rows(), "the format has rows");
  if (job.tokenizer == trainer::Tokenizer::bytes) return {BytesTokenizer::kEnd};
  return chat::stop_ids_of_folder(folder_of_tokenizer(job), *tokenizer::TextTokenizer::read(job.tokenizer_file));
}

std::shared_ptr<const RowFormat> row_format(const DataJob& job) {
  CHECK(job.is_rows() && !job.is_labelled(), "the format has rows of text");
  if (job.format == DataFormat::chat) return std::make_shared<Chats>(job);
  if (job.format == DataFormat::completion) return std::make_shared<Completions>(job);
  if (job.format == DataFormat::preference) return preference_rows(job);
  return std::make_shared<Documents>(job);
}

}  // namespace trainer::data
