// Templates as trees: the statements and expressions of Jinja 3.1 that chat templates use. What is left out
// (inheritance, imports, extensions other than loop controls and `generation`) is an error that names it.
#pragma once

#include <string_view>

#include "engine/chat/syntax.h"

namespace trainer::chat {

struct ParsedTemplate {
  Block body;
  bool has_generation = false;  ///< whether it says itself what is generated
};

/// Raises SyntaxError. REQUIRES: `text` is normalized, and UTF-8.
ParsedTemplate parse_template(std::string_view text);

}  // namespace trainer::chat
