// Values as text: Python's str() and repr(), and json.dumps. The text of a value that came from a message came from
// there too, punctuation included.
#pragma once

#include <optional>
#include <string>

#include "engine/chat/value.h"

namespace trainer::chat {

/// Python's str(value). What is undefined is no text.
Text to_text(const Value& value, Budget& budget);
/// Python's repr(value), as it stands in the text of a list.
Text repr(const Value& value, Budget& budget);
/// repr() of a float: the shortest digits that give it back.
std::string real_text(double value);

struct JsonStyle {
  bool ascii = false;                                        ///< escapes what is not ASCII
  std::optional<std::string> indent = std::nullopt;          ///< of each level; lines are broken where there is one
  std::optional<std::string> item_separator = std::nullopt;  ///< ", ", or "," before a line break
  std::string key_separator = ": ";
  bool sort_keys = false;
};
/// As Python's json.dumps. Raises TemplateError for what is none of JSON's kinds.
Text to_json(const Value& value, const JsonStyle& style, Budget& budget);

/// str.lower, upper, title and capitalize; `title_of_jinja` is the filter, whose words begin behind other characters.
enum class Case { lower, upper, title, title_of_jinja, capitalize };
Text with_case(const Text& text, Case wanted);

/// `&`, `<`, `>` and quotes as HTML has them.
Text escape_html(const Text& text, Budget& budget);

}  // namespace trainer::chat
