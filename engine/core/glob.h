// Globs over dotted names: `*` any run of characters but a dot, `**` any run.
#pragma once

#include <string_view>

namespace trainer {

inline bool glob_matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  const bool across = pattern.starts_with("**");
  if (across || pattern.front() == '*') {
    const std::string_view rest = pattern.substr(across ? 2 : 1);
    for (std::size_t skip = 0; skip <= text.size(); ++skip) {
      if (glob_matches(rest, text.substr(skip))) return true;
      if (!across && skip < text.size() && text[skip] == '.') return false;
    }
    return false;
  }
  return !text.empty() && pattern.front() == text.front() && glob_matches(pattern.substr(1), text.substr(1));
}

}  // namespace trainer
