// The effective job: every value that has an effect, as YAML, with where it came from.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/job/job.h"

namespace trainer {
namespace {

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
    parts.push_back(path.substr(begin, dot - begin));
    begin = dot + 1;
  }
  parts.push_back(path.substr(begin));
  return parts;
}

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
    for (; depth + 1 < parts.size(); ++depth) {
      lines.emplace_back(std::string(2 * depth, ' ') + key_text(parts[depth]) + ":", "");
      open.push_back(parts[depth]);
    }
    lines.emplace_back(fmt::format("{}{}: {}", std::string(2 * depth, ' '), key_text(parts.back()), setting.value), setting.origin(file));
  }
  constexpr std::size_t kWidest = 60;
  std::size_t width = 0;
  for (const auto& [text, origin] : lines) width = std::max(width, std::min(text.size(), kWidest));
  std::string out;
  for (const auto& [text, origin] : lines) out += origin.empty() ? text + "\n" : fmt::format("{:<{}}  # {}\n", text, width, origin);
  return out;
}

}  // namespace trainer
