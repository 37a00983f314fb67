// How the special tokens, stop ids and templates of a model folder are read, and how rendered text becomes ids.
#include "engine/chat/chat_format.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/file.h"

namespace trainer::chat {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxBytes = 64 << 20;  // of a configuration

/// An object, empty where there is no such file.
Json read_object(const std::string& path) {
  if (!exists(path)) return Json::object();
  Json json = Json::parse(read_text(path, kMaxBytes), nullptr, false);
  if (!json.is_object()) throw DataError(path + ": is no JSON object");
  return json;
}

/// A token is a text, or an object with its text as "content".
std::string token_text(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  return token.is_object() && token.contains("content") && token["content"].is_string()
             ? token["content"].get<std::string>()
             : "";
}

std::map<std::string, std::string> read_special_tokens(const std::string& folder, const Json& config) {
  std::map<std::string, std::string> out;
  for (const Json& from :
       {read_object(folder + "/special_tokens_map.json"), config, config.value("extra_special_tokens", Json::object())})
    if (from.is_object())
      for (const auto& [name, token] : from.items()) {
        if (!name.ends_with("_token")) continue;
        if (token.is_null())
          out.erase(name);
        else if (const std::string text = token_text(token); !text.empty())
          out[name] = text;
      }
  return out;
}

/// The templates by name, and the file of each.
std::map<std::string, std::pair<std::string, std::string>> read_templates(const std::string& folder,
                                                                          const Json& config) {
  std::map<std::string, std::pair<std::string, std::string>> out;
  const auto take = [&](const Json& given, const std::string& file) {
    if (given.is_string()) out["default"] = {given.get<std::string>(), file};
    if (!given.is_array()) return;
    for (const Json& one : given) {
      if (!one.is_object() || !one.value("name", Json()).is_string() || !one.value("template", Json()).is_string())
        throw DataError(file + ": each has a \"name\" and a \"template\"");
      out[one["name"].get<std::string>()] = {one["template"].get<std::string>(), file};
    }
  };
  // Files by themselves come before what the configuration has, as in transformers.
  constexpr std::int64_t kMaxTemplate = 8 << 20;
  if (const std::string file = folder + "/chat_template.jinja"; exists(file))
    out["default"] = {read_text(file, kMaxTemplate), file};
  if (const std::string more = folder + "/chat_templates"; is_directory(more))
    for (const auto& entry : std::filesystem::directory_iterator(more))
      if (entry.path().extension() == ".jinja")
        out[entry.path().stem().string()] = {read_text(entry.path().string(), kMaxTemplate), entry.path().string()};
  if (out.empty()) take(config.value("chat_template", Json()), folder + "/tokenizer_config.json: chat_template");
  if (out.empty())
    take(read_object(folder + "/chat_template.json").value("chat_template", Json()),
         folder + "/chat_template.json: chat_template");
  return out;
}

void take_ids(const Json& given, std::vector<std::int32_t>& out) {
  for (const Json& id : given.is_array() ? given : Json::array({given}))
    if (id.is_number_integer() && id >= 0 && id <= INT32_MAX) out.push_back(id.get<std::int32_t>());
}

}  // namespace

std::vector<std::int32_t> stop_ids_of_folder(const std::string& folder, const tokenizer::TextTokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (const char* name : {"/generation_config.json", "/config.json"})
    take_ids(read_object(folder + name).value("eos_token_id", Json()), ids);
  const auto special = read_special_tokens(folder, read_object(folder + "/tokenizer_config.json"));
  if (const auto eos = special.find("eos_token"); eos != special.end())
    if (const std::int32_t id = tokenizer.find(eos->second); id >= 0) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::optional<std::int32_t> end_of_text_of_folder(const std::string& folder,
                                                  const tokenizer::TextTokenizer& tokenizer) {
  const auto special = read_special_tokens(folder, read_object(folder + "/tokenizer_config.json"));
  if (const auto eos = special.find("eos_token"); eos != special.end())
    if (const std::int32_t id = tokenizer.find(eos->second); id >= 0) return id;
  std::vector<std::int32_t> ids;
  for (const char* name : {"/config.json", "/generation_config.json"})
    take_ids(read_object(folder + name).value("eos_token_id", Json()), ids);
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

std::string facts_of_folder(const std::string& folder, const std::string& file, std::optional<std::tm> today) {
  std::vector<std::string> files;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json",
                           "chat_template.jinja", "chat_template.json"})
    files.push_back(folder + "/" + name);
  std::error_code error;
  std::vector<std::string> named;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/chat_templates", error))
    named.push_back(entry.path().string());
  std::ranges::sort(named);
  files.insert(files.end(), named.begin(), named.end());
  if (!file.empty()) files.push_back(file);
  std::string facts;
  for (const std::string& each : files)
    if (exists(each))
      facts += std::filesystem::path(each).filename().string() + "\n" + read_text(each, kMaxBytes) + '\0';
  if (facts.find("strftime_now") == std::string::npos) return facts;
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  if (today)
    day = *today;
  else
    localtime_r(&now, &day);
  char text[16];
  return facts.append(text, std::strftime(text, sizeof text, "%Y-%m-%d", &day));
}

std::shared_ptr<const ChatFormat> ChatFormat::of_folder(const std::string& folder, const std::string& file,
                                                        std::optional<std::tm> today) {
  const Json config = read_object(folder + "/tokenizer_config.json");
  const std::shared_ptr<ChatFormat> out(new ChatFormat);
  out->today_ = today;
  out->facts_ = facts_of_folder(folder, file, today);
  out->tokenizer_ = tokenizer::TextTokenizer::read(folder);
  auto templates = read_templates(folder, config);
  if (!file.empty()) templates = {{"default", {read_text(file, 8 << 20), file}}};
  if (templates.empty())
    throw DataError(
        folder + ": has no chat template: neither chat_template.jinja nor \"chat_template\" in tokenizer_config.json");
  const auto parse = [&](const std::string& name) -> std::shared_ptr<const ChatTemplate> {
    const auto found = templates.find(name);
    return found == templates.end() ? nullptr : ChatTemplate::parse(found->second.first, found->second.second);
  };
  out->template_ = parse("default");
  out->with_tools_ = parse("tool_use");
  if (!out->template_ && !out->with_tools_)
    throw DataError(folder + ": none of its chat templates is named \"default\"");
  const auto special = read_special_tokens(folder, config);
  out->special_tokens_.assign(special.begin(), special.end());
  out->stop_ids_ = stop_ids_of_folder(folder, *out->tokenizer_);
  out->add_end_of_turn();
  return out;
}

// A template may end turns with another token than the files name, as ChatML on the tokenizer of a base model does.
void ChatFormat::add_end_of_turn() {
  Conversation conversation;
  conversation.add("user", "a");
  conversation.add("assistant", "b");
  try {
    const EncodedChat chat = encode(conversation, TrainOn::assistant);
    for (std::size_t i = chat.ids.size(); i-- > 0;) {
      if (!chat.trained[i]) continue;
      const std::int32_t last = chat.ids[i];
      if (tokenizer_->is_special(last) && !is_stop(last))
        stop_ids_.insert(std::ranges::lower_bound(stop_ids_, last), last);
      return;
    }
  } catch (const DataError&) {  // the template wants other conversations
  }
}

bool ChatFormat::is_stop(std::int32_t id) const { return std::ranges::binary_search(stop_ids_, id); }

const ChatTemplate& ChatFormat::template_for(const Conversation& conversation) const {
  if (with_tools_ && (conversation.has_tools() || !template_)) return *with_tools_;
  return *template_;
}

RenderOptions ChatFormat::options(bool prompt) const {
  return {.generation_prompt = prompt, .special_tokens = special_tokens_, .now = today_};
}

tokenizer::Tokens ChatFormat::tokens_of(const Text& text, const Conversation& conversation) const {
  std::vector<tokenizer::SourceRange> plain;
  std::uint32_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    const auto end = static_cast<std::uint32_t>(run.end);
    if (conversation.fields()[static_cast<std::size_t>(run.origin.field)].plain) {
      if (!plain.empty() && plain.back().end == begin)
        plain.back().end = end;
      else
        plain.push_back({begin, end});
    }
    begin = end;
  }
  return tokenizer_->encode(text.bytes(), {.ranges = true, .plain = {.parts = plain}});
}

EncodedChat ChatFormat::encode(const Conversation& conversation, TrainOn train_on) const {
  const ChatTemplate& chat_template = template_for(conversation);
  EncodedChat out;
  out.text = chat_template.render(conversation, options(false));
  tokenizer::Tokens tokens = tokens_of(out.text, conversation);
  const auto render = [&](std::size_t messages, bool prompt) -> std::optional<Text> {
    try {
      return chat_template.render(conversation.first(messages), options(prompt));
    } catch (const DataError&) {
      return std::nullopt;  // the whole conversation is not refused
    }
  };
  out.trained = trained_tokens(
      {conversation, out.text, chat_template.marks_generation(), render,
       [this](std::int32_t id) { return tokenizer_->is_special(id); }, [this](std::int32_t id) { return is_stop(id); }},
      tokens, train_on);
  out.ids = std::move(tokens.ids);
  out.ranges = std::move(tokens.ranges);
  return out;
}

Text ChatFormat::prompt_text(const Conversation& conversation) const {
  return template_for(conversation).render(conversation, options(true));
}

std::vector<std::int32_t> ChatFormat::prompt(const Conversation& conversation) const {
  return tokens_of(prompt_text(conversation), conversation).ids;
}

}  // namespace trainer::chat
