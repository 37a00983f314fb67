// Globs over dotted names, in two readings: paths of nodes, where a `*` stays between two dots, and whole names, where
// it does not.
#pragma once

#include <string_view>

namespace trainer {

/// Of paths: `*` is any run of characters but a dot, `**` any run.
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

/// Of whole names (parameters, targets of adapters): `*` is any run of characters, dots among them.
inline bool name_matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos,
              resume = 0;  // the last `*`, and the name from where it may take one more
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace trainer
