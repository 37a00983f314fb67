// How errors read.
#include "engine/core/error.h"

#include "engine/core/check.h"

namespace trainer {
namespace {

std::string joined(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += (text.empty() ? "" : "\n") + diagnostic.str();
  return text;
}

}  // namespace

std::string Diagnostic::str() const {
  std::string text = file;
  if (line > 0) text += ":" + std::to_string(line) + ":" + std::to_string(column);
  text += ": error: ";
  if (!path.empty()) text += path + ": ";
  text += message;
  if (!value.empty()) text += " (found " + value + ")";
  if (!suggestion.empty()) text += "; did you mean \"" + suggestion + "\"?";
  if (!allowed.empty()) text += "; allowed: " + allowed;
  if (!source.empty()) {
    text += "\n    " + source;
    if (column > 0) text += "\n    " + std::string(static_cast<std::size_t>(column - 1), ' ') + "^";
  }
  for (const std::string& remedy : remedies) text += "\n    help: " + remedy;
  return text;
}

JobError::JobError(std::vector<Diagnostic> diagnostics)
    : std::runtime_error(joined(diagnostics)), diagnostics_(std::move(diagnostics)) {}

void fail_check(const char* condition, const char* file, int line, const std::string& why) {
  throw Bug(std::string(file) + ":" + std::to_string(line) + ": " + why + " (" + condition + ")");
}

}  // namespace trainer
