// The trainer command as a process, as users and scripts see it: arguments in; exit code, stdout and stderr out.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace trainer::tests {

struct Outcome {
  int code = -1;  ///< exit code; 128 + n for a process that signal n ended
  std::string out, err;
};

/// A started command. Its folder is where it runs and where its output is caught.
class Process {
 public:
  /// Runs on one thread, so that tests side by side do not wait for each other, with a cache in the folder. `program`:
  /// another command than trainer.
  Process(const std::string& folder, const std::vector<std::string>& arguments, const std::string& program = "");
  Process(const Process&) = delete;
  ~Process();

  void signal(int number) const;
  pid_t pid() const { return pid_; }
  /// What it has written to stderr so far.
  std::string err_so_far() const;
  /// Whether wait would return at once.
  bool has_ended() const;
  Outcome wait();

 private:
  std::string out_, err_;
  pid_t pid_ = -1;
};

/// Starts `trainer arguments…` in `folder` and waits for it.
Outcome trainer(const std::string& folder, const std::vector<std::string>& arguments);

}  // namespace trainer::tests
