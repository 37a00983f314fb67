// stderr through TextOutput, stdout through stdio.
#include "tools/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/printable.h"
#include "engine/core/system_error.h"
#include "engine/core/text_output.h"
#include "engine/core/utf8.h"
#include "tools/command.h"

namespace trainer::tools {
namespace {

std::atomic<int> patience_ms = TextOutput::kForever;
int failure_of_stdout = 0;  // errno of the first
std::string begun;          // bytes of a character for the terminal that is not complete

// Opened by guard_streams, so before any signal handler asks for it; never destroyed, as threads may speak to the end.
TextOutput& people() {
  static TextOutput& output = *new TextOutput(STDERR_FILENO);
  return output;
}

void note_failure() {
  if (failure_of_stdout == 0) failure_of_stdout = errno;
}

void write_result(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) note_failure();
}

}  // namespace

void say_text(std::string_view text) { people().write(printable_lines(text), patience_ms); }

void say_line(const std::string& text) { say_text(printable(text) + "\n"); }

void put_text(std::string_view text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (!terminal) return write_result(text);
  begun += text;
  const std::size_t whole = whole_characters(begun);
  write_result(printable_lines(std::string_view(begun).substr(0, whole)));
  begun.erase(0, whole);
}

void draw(std::string_view text) { people().write(text, patience_ms); }
void say_now(std::string_view text) noexcept { people().write_now(text); }
void never_wait_for_readers() { patience_ms = 1000; }

std::function<void(std::int64_t, std::int64_t)> progress_line(std::string what) {
  if (::isatty(STDERR_FILENO) != 1) return {};
  return [what = std::move(what), last = std::int64_t{-1}](std::int64_t done, std::int64_t all) mutable {
    const std::int64_t percent = all > 0 ? 100 * done / all : 100;
    if (percent == std::exchange(last, percent)) return;
    draw(done == all ? "\r\x1b[K" : fmt::format("\r{} {:3d} %", what, percent));
  };
}

void flush_results() {
  if (std::fflush(stdout) == 0 && failure_of_stdout == 0) return;
  note_failure();
  throw IoError("writing the result to stdout failed");
}

// Descriptor 1 becomes one that cannot be written: a result that cannot be delivered is an error.
void guard_streams() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) [[maybe_unused]]
      const int lowest = ::open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  std::signal(SIGPIPE, SIG_IGN);
  people();
}

int finish(int code) {
  write_result(printable_lines(begun));
  if (std::fflush(stdout) != 0) note_failure();
  if (failure_of_stdout == 0 && std::ferror(stdout) == 0) return code;
  if (failure_of_stdout != EPIPE)
    say("trainer: input/output: writing the result to stdout failed: {}\n", system_text(failure_of_stdout));
  return kInputOutput;
}

}  // namespace trainer::tools
