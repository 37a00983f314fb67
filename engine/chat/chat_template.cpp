// How a template is parsed once and rendered for each conversation, under a budget.
#include "engine/chat/chat_template.h"

#include <algorithm>

#include "engine/chat/interpreter.h"
#include "engine/chat/lexer.h"
#include "engine/chat/parser.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"

namespace trainer::chat {
namespace {

constexpr std::size_t kMaxTemplateBytes = 4 << 20;  // of a template

std::tm machine_date() {
  const std::time_t seconds = std::time(nullptr);
  std::tm now{};
  localtime_r(&seconds, &now);
  return now;
}

}  // namespace

std::shared_ptr<const ChatTemplate> ChatTemplate::parse(std::string_view text, std::string name) {
  return std::shared_ptr<const ChatTemplate>(new ChatTemplate(text, std::move(name)));
}

ChatTemplate::~ChatTemplate() = default;

ChatTemplate::ChatTemplate(std::string_view text, std::string name)
    : name_(std::move(name)), text_(normalized_template(text.substr(0, kMaxTemplateBytes + 1))) {
  if (text.size() > kMaxTemplateBytes) throw DataError(name_ + ": the template is longer than 4 MiB");
  for (std::size_t at = 0; at < text_.size();)
    if (next_code_point(text_, at) == kNotUtf8) throw DataError(place(at) + "the template is not UTF-8");
  try {
    parsed_ = std::make_unique<const ParsedTemplate>(parse_template(text_));
  } catch (const SyntaxError& error) {
    throw DataError(place(error.offset) + error.what());
  }
}

Text ChatTemplate::render(const Conversation& conversation, const RenderOptions& options) const {
  RunInput input;
  input.now = options.now ? *options.now : machine_date();
  input.variables = {{"messages", make_list(conversation.messages())},
                     {"tools", conversation.tools()},
                     {"documents", conversation.documents()},
                     {"add_generation_prompt", Value(options.generation_prompt)}};
  const auto is_given = [&](const std::string& name) {
    return std::any_of(conversation.variables().begin(), conversation.variables().end(),
                       [&](const auto& variable) { return variable.first == name; });
  };
  for (const auto& [name, token] : options.special_tokens)
    if (!is_given(name)) input.variables.emplace_back(name, Value::text(token));
  for (const auto& [name, value] : conversation.variables()) {
    for (const auto& [fixed, there] : input.variables)
      if (fixed == name) throw DataError("\"chat_template_kwargs\" cannot set \"" + name + "\"");
    input.variables.emplace_back(name, value);
  }
  Budget budget(options.budget);
  try {
    return Interpreter(*parsed_, input, budget).run();
  } catch (const RunError& error) {
    throw DataError(place(error.offset) + error.what());
  }
}

bool ChatTemplate::marks_generation() const { return parsed_->has_generation; }

std::string ChatTemplate::place(std::size_t offset) const {
  const std::string_view before = std::string_view(text_).substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return name_ + ":" + std::to_string(line) + ":" + std::to_string(count_characters(before.substr(start)) + 1) + ": ";
}

}  // namespace trainer::chat
