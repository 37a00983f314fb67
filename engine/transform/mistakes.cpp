// Gathering of mistakes.
#include "engine/transform/mistakes.h"

#include <algorithm>

#include "engine/job/nearest.h"

namespace trainer {

Diagnostic& Mistakes::add(const yaml::Node& where, std::string path, std::string message) {
  Diagnostic diagnostic = where.at(std::move(path), std::move(message));
  const bool given = diagnostic.path.starts_with("model.with.");  // all of them are told where the graph has its params
  if (!places_.insert({diagnostic.line, diagnostic.column, given ? diagnostic.path : ""}).second)
    return spare_ = std::move(diagnostic);
  diagnostics_.push_back(std::move(diagnostic));
  return diagnostics_.back();
}

void Mistakes::unknown(const yaml::Node& where, std::string path, std::string message, std::string_view name,
                       std::span<const std::string_view> allowed, const Alias* alias) {
  Diagnostic& diagnostic = add(where, std::move(path), std::move(message));
  diagnostic.value = name;
  if (alias != nullptr)
    answer(diagnostic, *alias);
  else
    diagnostic.suggestion = nearest(name, allowed);
  if (!allowed.empty()) diagnostic.allowed = "one of " + listed(allowed);
}

void Mistakes::raise() {
  if (!any()) return;
  std::stable_sort(diagnostics_.begin(), diagnostics_.end(), [](const Diagnostic& a, const Diagnostic& b) {
    return std::pair(a.line, a.column) < std::pair(b.line, b.column);
  });
  throw JobError(std::move(diagnostics_));
}

std::string listed(std::span<const std::string_view> names) {
  std::string text;
  for (std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

}  // namespace trainer
