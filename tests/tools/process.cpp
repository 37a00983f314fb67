// fork and exec, output into files of the folder.
#include "tests/tools/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "tests/temporary.h"

namespace trainer::tests {
namespace {

// Only what may follow fork: no allocation.
[[noreturn]] void become(const char* program, const char* folder, const char* out, const char* err,
                         char* const* arguments) {
  const int out_file = ::open(out, O_WRONLY | O_CREAT | O_TRUNC, 0666),
            err_file = ::open(err, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (out_file < 0 || err_file < 0 || ::dup2(out_file, 1) < 0 || ::dup2(err_file, 2) < 0 || ::chdir(folder) != 0)
    ::_exit(126);
  ::execv(program, arguments);
  ::_exit(127);
}

}  // namespace

Process::Process(const std::string& folder, const std::vector<std::string>& arguments, const std::string& program)
    : out_(folder + "/.stdout"), err_(folder + "/.stderr") {
  const std::string path = program.empty() ? TRAINER_COMMAND : program;
  ::setenv("TRAINER_THREADS", "1", 1);
  ::setenv("XDG_CACHE_HOME", (folder + "/cache").c_str(), 1);
  std::vector<std::string> words{path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) become(path.c_str(), folder.c_str(), out_.c_str(), err_.c_str(), pointers.data());
}

Process::~Process() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Process::signal(int number) const { ::kill(pid_, number); }

std::string Process::err_so_far() const { return contents_of(err_); }

bool Process::has_ended() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
}

Outcome Process::wait() {
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) throw std::runtime_error("waitpid failed");
  pid_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), contents_of(out_), contents_of(err_)};
}

Outcome trainer(const std::string& folder, const std::vector<std::string>& arguments) {
  return Process(folder, arguments).wait();
}

}  // namespace trainer::tests
