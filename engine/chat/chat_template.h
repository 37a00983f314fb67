// ChatTemplate: a chat template as transformers 5 renders it (Jinja 3.1 in its sandbox, trim_blocks and lstrip_blocks),
// whose text knows where each byte came from. It reads no file and runs no code.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/conversation.h"
#include "engine/chat/text.h"

namespace trainer::chat {

struct ParsedTemplate;

struct RenderOptions {
  bool generation_prompt = false;  ///< ends with what the answer of the assistant begins behind
  /// Names as "bos_token" and what they are written as.
  std::vector<std::pair<std::string, std::string>> special_tokens = {};
  std::int64_t budget = 200'000'000;          ///< steps and bytes that a rendering may take: some seconds
  std::optional<std::tm> now = std::nullopt;  ///< what strftime_now tells; the machine's date where it is not given
};

class ChatTemplate {
 public:
  /// `name` is the template's name in messages. Raises DataError with line and column.
  static std::shared_ptr<const ChatTemplate> parse(std::string_view text, std::string name);
  ~ChatTemplate();

  /// Raises DataError with the place in the template: for what it refuses, and for what goes wrong in it. Any number of
  /// threads.
  Text render(const Conversation& conversation, const RenderOptions& options) const;
  /// Whether the template says itself, by {% generation %}, what is the assistant's.
  bool marks_generation() const;
  const std::string& name() const { return name_; }

 private:
  ChatTemplate(std::string_view text, std::string name);
  std::string place(std::size_t offset) const;

  const std::string name_, text_;
  std::unique_ptr<const ParsedTemplate> parsed_;
};

}  // namespace trainer::chat
