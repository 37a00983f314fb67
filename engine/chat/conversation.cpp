// How messages become values: every string is labelled with the message and field that it came from.
#include "engine/chat/conversation.h"

#include <algorithm>

#include "engine/chat/json_values.h"
#include "engine/core/error.h"
#include "engine/core/printable.h"

namespace trainer::chat {
namespace {

constexpr std::int64_t kNoLimit = INT64_MAX;

/// A role of letters may be a part of the template's markers, as in '<|' + role + '|>'.
bool is_word(const Value& value) {
  const auto part = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return value.text() && std::all_of(value.text()->bytes().begin(), value.text()->bytes().end(), part);
}

Value relabelled(const Value& value, Origin origin, Budget& budget) {
  if (value.text()) return Text(value.text()->bytes(), origin);
  if (value.list()) {
    std::vector<Value> items;
    for (const Value& item : value.list()->items) items.push_back(relabelled(item, origin, budget));
    auto list = make_list(std::move(items));
    list->origin = origin;
    return list;
  }
  if (value.dict()) {
    auto dict = std::make_shared<Dict>();
    for (const auto& [key, each] : value.dict()->entries)
      dict->set(relabelled(key, origin, budget), relabelled(each, origin, budget), budget);
    dict->origin = origin;
    return dict;
  }
  Value out = value;
  out.origin = origin;
  return out;
}

/// What transformers does with reasoning before a template sees it: it is there under the names that templates read.
void name_reasoning(Dict& message, Budget& budget) {
  const Value* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"})
    if (reasoning == nullptr) reasoning = message.find(std::string_view(name));
  if (reasoning == nullptr) return;
  const Value value = *reasoning;
  Dict named;
  const Value* thinking = message.find(std::string_view("thinking"));
  named.set(Value::text("thinking"), thinking != nullptr ? *thinking : value, budget);
  for (auto& [key, each] : message.entries) named.set(key, each, budget);
  named.set(Value::text("reasoning_content"), value, budget);
  message = std::move(named);
}

}  // namespace

Conversation Conversation::parse(std::string_view json) {
  const Value row = parse_json(json);
  if (!row.dict()) throw DataError(R"(a conversation is a JSON object with "messages")");
  const Value* messages = row.dict()->find(std::string_view("messages"));
  if (messages == nullptr || !messages->list()) throw DataError(R"("messages" is a list of messages)");
  Conversation out;
  for (const Value& message : messages->list()->items) out.take_message(message);
  const auto list_at = [&](const char* name) -> Value {
    const Value* found = row.dict()->find(std::string_view(name));
    if (found == nullptr || found->is_none()) return None{};
    if (!found->list()) throw DataError("\"" + std::string(name) + "\" is a list");
    return out.with_field(*found, Origin::kNoTurn, name);
  };
  out.tools_ = list_at("tools");
  out.documents_ = list_at("documents");
  if (const Value* variables = row.dict()->find(std::string_view("chat_template_kwargs"));
      variables != nullptr && !variables->is_none()) {
    if (!variables->dict()) throw DataError(R"("chat_template_kwargs" is an object)");
    for (const auto& [key, value] : variables->dict()->entries)
      out.variables_.emplace_back(key.text()->bytes(), out.with_field(value, Origin::kNoTurn, "chat_template_kwargs"));
  }
  return out;
}

void Conversation::take_message(const Value& message) {
  if (!message.dict()) throw DataError("a message is an object with \"role\" and \"content\"");
  Budget budget(kNoLimit);
  const auto index = static_cast<std::int32_t>(messages_.size());
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, value] : message.dict()->entries)
    if (!value.is_none()) dict->set(key, with_field(value, index, key.text()->bytes()), budget);
  name_reasoning(*dict, budget);
  dict->message = index;
  dict->origin = {.field = static_cast<std::int32_t>(fields_.size())};
  fields_.push_back({index, "message", true});
  messages_.emplace_back(std::move(dict));
}

Value Conversation::with_field(const Value& value, std::int32_t message, const std::string& name) {
  Budget budget(kNoLimit);
  const Origin origin{.field = static_cast<std::int32_t>(fields_.size())};
  fields_.push_back({message, name, !(message != Origin::kNoTurn && name == "role" && is_word(value))});
  return relabelled(value, origin, budget);
}

void Conversation::add(std::string_view role, std::string_view content) {
  Budget budget(kNoLimit);
  auto message = std::make_shared<Dict>();
  message->set(Value::text("role"), Value::text(role), budget);
  message->set(Value::text("content"), Value::text(content), budget);
  take_message(Value(std::move(message)));
}

Conversation Conversation::first(std::size_t count) const {
  Conversation out = *this;
  out.messages_.resize(std::min(count, messages_.size()));
  return out;
}

std::string Conversation::role(std::size_t message) const {
  const Value* role = messages_[message].dict()->find(std::string_view("role"));
  return role != nullptr && role->text() ? role->text()->bytes() : "";
}

}  // namespace trainer::chat
