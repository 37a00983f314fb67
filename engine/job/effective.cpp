// The effective job: every value that has an effect, as YAML, with where it came from.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/job/job.h"

namespace trainer {
namespace {

// Keys, and items of lists as "[0]".
std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> parts(1);
  for (const char c : path) {
    if (c == '.' || c == '[') parts.emplace_back();
    if (c != '.') parts.back() += c;
  }
  return parts;
}

bool is_item(const std::string& part) { return part.starts_with('['); }

/// A key as YAML: quoted where it would be no string.
std::string key_text(const std::string& key) {
  yaml::Node node;
  node.text = key;
  return node.as_string() ? key : "\"" + key + "\"";
}

}  // namespace

std::string effective_job(const LoadedJob& loaded) {
  const std::string file = std::filesystem::path(loaded.file).filename().string();
  std::vector<std::pair<std::string, std::string>> lines;  // text, origin
  std::vector<std::string> open;
  for (const Setting& setting : loaded.settings) {
    const std::vector<std::string> parts = split(setting.path);
    std::size_t depth = 0;
    while (depth + 1 < parts.size() && depth < open.size() && open[depth] == parts[depth]) ++depth;
    open.resize(depth);
    std::string dash;  // before the first key of an item
    const auto add = [&](const std::string& text, const std::string& origin) {
      lines.emplace_back(std::string(2 * depth - dash.size(), ' ') + dash + text, origin);
      dash.clear();
    };
    for (; depth + 1 < parts.size(); ++depth) {
      if (is_item(parts[depth]))
        dash = "- ";
      else
        add(key_text(parts[depth]) + ":", "");
      open.push_back(parts[depth]);
    }
    add(key_text(parts.back()) + ": " + setting.value, setting.origin(file));
  }
  constexpr std::size_t kWidest = 60;
  std::size_t width = 0;
  for (const auto& [text, origin] : lines) width = std::max(width, std::min(text.size(), kWidest));
  std::string out;
  for (const auto& [text, origin] : lines)
    out += origin.empty() ? text + "\n" : fmt::format("{:<{}}  # {}\n", text, width, origin);
  return out;
}

}  // namespace trainer
