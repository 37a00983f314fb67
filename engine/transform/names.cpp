// Names of a graph file.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/job/nearest.h"
#include "engine/transform/reading.h"

namespace trainer {

EntryId Names::declare(Entry entry, const yaml::Node& where, const std::string& path) {
  const auto id = static_cast<EntryId>(entries_.size());
  if (stand_ins_.erase(entry.name) > 0) ids_.erase(entry.name);
  const auto [at, fresh] = ids_.emplace(entry.name, id);
  if (!fresh) {
    const yaml::Node* first = (*this)[at->second].where;
    const std::string taken = first->line == where.line
                                  ? "the name is given again by each repetition; it needs {index}"
                                  : fmt::format("the name is taken already, in line {}", first->line);
    mistakes_.add(where, path, taken).value = entry.name;
  }
  entries_.push_back(std::move(entry));
  return id;
}

void Names::declare_alias(const std::string& name, EntryId entry, const yaml::Node& where) {
  if (entry == kNone) return;  // an empty group that nothing enters
  if (stand_ins_.erase(name) > 0) ids_.erase(name);
  if (!ids_.emplace(name, entry).second)
    mistakes_.add(where, name, "the name is taken already; a repeated group needs {index} in its name").value = name;
}

void Names::declare_stand_in(const std::string& name, EntryId entry) {
  if (entry != kNone && ids_.emplace(name, entry).second) stand_ins_.insert(name);
}

EntryId Names::declare_like(const std::string& group, const std::string& like) {
  like_[group] = like;
  return find_in_left_out(group);
}

EntryId Names::find_in_left_out(std::string_view name) const {
  for (std::size_t end = name.size(); end != std::string_view::npos && end > 0; end = name.rfind('.', end - 1)) {
    const auto like = like_.find(std::string(name.substr(0, end)));
    if (like == like_.end()) continue;
    const auto found = ids_.find(like->second + std::string(name.substr(end)));
    return found == ids_.end() ? kNone : found->second;
  }
  return kNone;
}

EntryId Names::look_up(const std::string& name, const yaml::Node& where, const std::string& path, const Scope& scope) {
  if (name == "block.input") {
    if (scope.block_input == kNone)
      mistakes_.add(
          where, path,
          scope.outer == nullptr ? "block.input has a meaning only inside a block" : "nothing enters this block");
    return scope.block_input;
  }
  if (const EntryId known = find(name, scope); known != kNone) return known;
  std::vector<std::string> candidates;
  for (const Scope* at = &scope; at != nullptr; at = at->outer) candidates.push_back(at->prefix + name);
  missing_.push_back({&where, path, name, std::move(candidates)});
  return kNone;
}

EntryId Names::find(const std::string& name, const Scope& scope) const {
  if (name == "block.input") return scope.block_input;
  for (const Scope* at = &scope; at != nullptr; at = at->outer)
    if (const auto found = ids_.find(at->prefix + name); found != ids_.end()) return found->second;
  for (const Scope* at = &scope; at != nullptr && !like_.empty(); at = at->outer)
    if (const EntryId found = find_in_left_out(at->prefix + name); found != kNone) return found;
  return kNone;
}

bool Names::report_missing() {
  for (const Missing& missing : missing_) {
    const auto later = std::find_if(missing.candidates.begin(), missing.candidates.end(),
                                    [&](const std::string& name) { return ids_.contains(name); });
    if (later == missing.candidates.end()) {
      report_unknown(missing);
      continue;
    }
    const int line = (*this)[ids_.at(*later)].where->line;
    mistakes_.add(
        *missing.where, missing.path,
        fmt::format("\"{}\" stands later, in line {}: a node takes what stands before it, so there is no cycle",
                    missing.name, line));
  }
  return !std::exchange(missing_, {}).empty();
}

void Names::report_unknown(const Missing& missing) {
  const std::string& innermost = missing.candidates.front();
  const std::string_view prefix = std::string_view(innermost).substr(0, innermost.size() - missing.name.size());
  std::vector<std::string_view> known;
  if (!prefix.empty()) known.push_back("block.input");
  for (const Entry& entry : entries_) {
    const std::string_view name = entry.name;
    if (!prefix.empty() && name.starts_with(prefix)) known.push_back(name.substr(prefix.size()));
    known.push_back(name);
  }
  Diagnostic& diagnostic = mistakes_.add(*missing.where, missing.path, "no node or input is called so");
  diagnostic.value = missing.name;
  diagnostic.suggestion = nearest(missing.name, known);
}

}  // namespace trainer
