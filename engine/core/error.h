// Errors, by who can mend them. A user's mistake in a job or graph is a JobError with its place; bad data
// or a bad checkpoint a DataError; the operating system's refusal an IoError; a broken promise of our own
// a Bug, raised by CHECK. `tools/` alone turns them into exit codes; a library function never exits.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace trainer {

/// One mistake in a job, graph or hardware file. `line` and `column` count from 1; 0 where there is none
/// (an override on the command line has file "command line").
struct Diagnostic {
  std::string file;
  int line = 0;
  int column = 0;
  std::string path;                        ///< key path, as "train.optimizer.lr"
  std::string message;                     ///< what is wrong, as "unknown key"
  std::string value;                       ///< the offending value as written, if there is one
  std::string allowed;                     ///< what would be right, as "one of adam, adamw, lion, sgd"
  std::string suggestion;                  ///< nearest allowed name, if one is near
  std::string source;                      ///< the line itself, for people
  std::vector<std::string> remedies = {};  ///< changes of the job, each of which would mend it; the smallest first
  std::string note{};  ///< a second place that explains the mistake, as "models/gpt2.yaml:20:49: h.0.attn.core.heads"
  enum class Severity { error, warning } severity = Severity::error;  ///< a warning stops nothing

  /// `file:line:column: error: path: message; …` and, where known, the source line, the note and the remedies below it.
  std::string str() const;
};

/// Exit code 78. Holds every mistake that was found, in file order; of more than 50 the first 50 and one that counts
/// the rest.
class JobError : public std::runtime_error {
 public:
  explicit JobError(std::vector<Diagnostic> diagnostics);
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

/// Exit code 64: the command line itself is wrong.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Exit code 65: data or a checkpoint that is missing, malformed or damaged. The text names file and offset.
struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Exit code 74: reading or writing failed. The text names the file and errno's message.
struct IoError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Exit code 70: a promise of the program's own was broken.
struct Bug : std::logic_error {
  using std::logic_error::logic_error;
};

}  // namespace trainer
