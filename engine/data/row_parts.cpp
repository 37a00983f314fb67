// How members of rows are found, what is said where one is missing, and how text ends.
#include "engine/data/row_parts.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/chat/chat_format.h"
#include "engine/core/error.h"
#include "engine/tokenizer/text_tokenizer.h"

namespace trainer::data {
namespace {

const std::set<std::string> kRoles{"system", "developer", "user", "assistant", "tool"};

/// "messages, tools and id": what the row has instead.
std::string members_of(const RowJson& row) {
  std::string out;
  std::size_t left = row.size();
  for (const auto& [name, value] : row.items()) {
    out += (out.empty() ? "" : left == 1 ? " and " : ", ") + ("\"" + name + "\"");
    --left;
  }
  return out.empty() ? "nothing" : out;
}

}  // namespace

std::string named(const DataJob& job, const std::string& what) {
  const auto found = job.fields.find(what);
  return found == job.fields.end() ? what : found->second;
}

RowJson object_of(const std::string& row) {
  RowJson json = RowJson::parse(row, nullptr, false);
  if (json.is_discarded()) throw DataError("no JSON");
  if (!json.is_object()) throw DataError("a row is a JSON object");
  return json;
}

[[noreturn]] void missing(const RowJson& row, const std::string& what, const std::string& name) {
  throw DataError("has no \"" + name + "\": it has " + members_of(row) + "; data.fields says where a row has its " +
                  what);
}

const std::string& text_at(const RowJson& row, const DataJob& job, const std::string& what) {
  const std::string name = named(job, what);
  const auto found = row.find(name);
  if (found == row.end()) missing(row, what, name);
  if (!found->is_string()) throw DataError("\"" + name + "\" is no string");
  return found->get_ref<const std::string&>();
}

RowJson message_of(const DataJob& job, const RowJson& message, std::size_t index) {
  const auto fail = [&](const std::string& what) {
    throw DataError("message " + std::to_string(index + 1) + " " + what);
  };
  if (!message.is_object()) fail("is no object");
  RowJson out = RowJson::object();
  for (const char* what : {"role", "content"})
    if (const auto found = message.find(named(job, what)); found != message.end()) out[what] = *found;
  if (!out.contains("role") || !out["role"].is_string())
    fail("has no \"" + named(job, "role") + "\": it has " + members_of(message) +
         "; data.fields says where a message has its role and content");
  if (!out.contains("content") && !message.contains("tool_calls"))
    fail("has no \"" + named(job, "content") + "\": it has " + members_of(message) +
         "; data.fields says where a message has its role and content");
  const std::string role = out["role"];
  if (const auto known = job.roles.find(role); known != job.roles.end())
    out["role"] = known->second;
  else if (!job.roles.empty() && !kRoles.contains(role))
    fail("has the role \"" + role + "\", which data.roles does not list");
  for (const auto& [name, value] : message.items())
    if (!out.contains(name) && name != named(job, "role") && name != named(job, "content")) out[name] = value;
  return out;
}

std::string conversation_of(const DataJob& job, const RowJson& row, const RowJson& messages) {
  RowJson out = RowJson::object();
  out["messages"] = RowJson::array();
  for (std::size_t i = 0; i < messages.size(); ++i) out["messages"].push_back(message_of(job, messages[i], i));
  for (const char* more : kBesideMessages)
    if (const auto found = row.find(named(job, more)); found != row.end()) out[more] = *found;
  return out.dump();
}

std::string facts_of_names(const DataJob& job) {
  std::string facts;
  for (const auto& [what, name] : job.fields) facts += "\n" + what + " is " + name;
  for (const auto& [word, role] : job.roles) facts += "\nrole " + word + " is " + role;
  return facts;
}

TextToIds::TextToIds(const DataJob& job) {
  if (job.tokenizer == trainer::Tokenizer::bytes) {
    tokenizer_ = std::make_shared<BytesTokenizer>(/*has_end=*/true);
    end_ = BytesTokenizer::kEnd;
    return;
  }
  file_ = std::make_shared<FileTokenizer>(job.tokenizer_file);
  tokenizer_ = file_;
  const std::string folder = folder_of_tokenizer(job);
  const std::optional<std::int32_t> end = chat::end_of_text_of_folder(folder, file_->text_tokenizer());
  if (!end)
    throw DataError(folder +
                    ": nothing says which token ends a text: neither \"eos_token\" of tokenizer_config.json nor "
                    "\"eos_token_id\" of config.json or generation_config.json");
  end_ = *end;
}

std::vector<std::int32_t> TextToIds::open_ids(const std::string& text, std::vector<std::uint32_t>* first_bytes) const {
  std::vector<std::int32_t> ids;
  if (!file_) {
    ids = tokenizer_->encode(text);
    for (std::size_t i = 0; first_bytes && i < ids.size(); ++i) first_bytes->push_back(static_cast<std::uint32_t>(i));
    return ids;
  }
  tokenizer::Tokens tokens =
      file_->text_tokenizer().encode(text, {.special = true, .ranges = first_bytes != nullptr, .plain = {.all = true}});
  if (first_bytes)
    for (const tokenizer::SourceRange& range : tokens.ranges) first_bytes->push_back(range.begin);
  return std::move(tokens.ids);
}

std::vector<std::int32_t> TextToIds::ids(const std::string& text, std::vector<std::uint32_t>* first_bytes) const {
  std::vector<std::int32_t> ids = open_ids(text, first_bytes);
  const bool ended = !ids.empty() && ids.back() == end_;  // the tokenizer adds it
  if (!ended) ids.push_back(end_);
  if (first_bytes) {
    first_bytes->resize(ids.size());
    first_bytes->back() = static_cast<std::uint32_t>(text.size());
  }
  return ids;
}

std::string folder_of_tokenizer(const DataJob& job) {
  const std::string file = tokenizer::tokenizer_file_in(job.tokenizer_file);
  const std::string folder = std::filesystem::path(file).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace trainer::data
