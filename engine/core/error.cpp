// How errors read.
#include "engine/core/error.h"

#include "engine/core/check.h"
#include "engine/core/printable.h"
#include "engine/core/utf8.h"

namespace trainer {
namespace {

std::string joined(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += (text.empty() ? "" : "\n") + diagnostic.str();
  return text;
}

std::size_t num_code_points(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count)
    if (next_code_point(text, at) == kNotUtf8) ++at;
  return count;
}

/// A line of a file and a caret below `column`, whatever place the escapes before it take.
std::string marked_line(const std::string& line, int column) {
  std::string text = "\n    " + printable(line);
  if (column <= 0) return text;
  std::size_t end = 0, before = static_cast<std::size_t>(column - 1);
  for (; before > 0 && end < line.size(); --before)
    if (next_code_point(line, end) == kNotUtf8) ++end;
  return text + "\n    " + std::string(num_code_points(printable(line.substr(0, end))) + before, ' ') + "^";
}

/// More than a person reads at once, and what follows is often the first mistakes' echo.
constexpr std::size_t kMostMistakes = 50;

std::vector<Diagnostic> first_of(const std::vector<Diagnostic>& diagnostics) {
  if (diagnostics.size() <= kMostMistakes) return diagnostics;
  std::vector<Diagnostic> first(diagnostics.begin(), diagnostics.begin() + kMostMistakes);
  Diagnostic rest;
  rest.file = diagnostics.back().file;
  rest.message = "and " + std::to_string(diagnostics.size() - kMostMistakes) + " more mistakes";
  first.push_back(std::move(rest));
  return first;
}

}  // namespace

std::string Diagnostic::str() const {
  std::string text = file;
  if (line > 0) text += ":" + std::to_string(line) + ":" + std::to_string(column);
  text += severity == Severity::warning ? ": warning: " : ": error: ";
  if (!path.empty()) text += path + ": ";
  text += message;
  if (!value.empty()) text += " (found " + value + ")";
  if (!suggestion.empty()) text += "; did you mean \"" + suggestion + "\"?";
  if (!allowed.empty()) text += "; allowed: " + allowed;
  text = printable(text);
  if (!source.empty()) text += marked_line(source, column);
  if (!note.empty()) text += "\n    see " + printable(note);
  for (const std::string& remedy : remedies) text += "\n    help: " + printable(remedy);
  return text;
}

JobError::JobError(std::vector<Diagnostic> diagnostics)
    : std::runtime_error(joined(first_of(diagnostics))), diagnostics_(first_of(diagnostics)) {}

void fail_check(const char* condition, const char* file, int line, const std::string& why) {
  throw Bug(std::string(file) + ":" + std::to_string(line) + ": " + why + " (" + condition + ")");
}

}  // namespace trainer
