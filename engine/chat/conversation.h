// A conversation as templates see it, and which of its fields each piece of text came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/value.h"

namespace trainer::chat {

/// What Origin::field names. Field 0 is the template.
struct Field {
  std::int32_t message = Origin::kNoTurn;  ///< the message's index; of tools and other variables none
  std::string name;                        ///< as "content"
  bool plain = true;                       ///< special tokens that are written in it are text
};

class Conversation {
 public:
  Conversation() : fields_(1) { fields_.front().plain = false; }
  /// Reads {"messages": [{"role": …, "content": …}, …]} and, where they are given, "tools", "documents" and
  /// "chat_template_kwargs" (variables of the template). Other keys are ignored. Raises DataError.
  static Conversation parse(std::string_view json);

  void add(std::string_view role, std::string_view content);
  /// The first messages, with the same tools and variables.
  Conversation first(std::size_t count) const;

  std::size_t size() const { return messages_.size(); }
  /// The role of a message; "" where it has none.
  std::string role(std::size_t message) const;
  bool has_tools() const { return !tools_.is_none(); }
  const std::vector<Field>& fields() const { return fields_; }

  const std::vector<Value>& messages() const { return messages_; }
  const Value& tools() const { return tools_; }
  const Value& documents() const { return documents_; }
  const std::vector<std::pair<std::string, Value>>& variables() const { return variables_; }

 private:
  void take_message(const Value& message);
  Value with_field(const Value& value, std::int32_t message, const std::string& name);

  std::vector<Field> fields_;
  std::vector<Value> messages_;
  Value tools_ = None{}, documents_ = None{};
  std::vector<std::pair<std::string, Value>> variables_;
};

}  // namespace trainer::chat
