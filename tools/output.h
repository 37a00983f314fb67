// What the command says and what it puts out: text for people goes to stderr, results to stdout. Text for people never
// ends or holds up the work: what cannot be written is left out. A result that cannot be written is an error, which
// main's finish reports. Nothing that comes from a job, a file or the command line reaches a terminal as an escape
// sequence.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace trainer::tools {

void say_text(std::string_view text);
void put_text(std::string_view text);

/// Text for people. Control characters in it are shown as escapes, apart from line breaks and tabs.
template <typename... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  say_text(fmt::format(format, std::forward<Args>(args)...));
}

/// A line for people, whatever it contains.
void say_line(const std::string& text);

/// A result: as it is in a file or pipe; on a terminal like text for people.
template <typename... Args>
void put(fmt::format_string<Args...> format, Args&&... args) {
  put_text(fmt::format(format, std::forward<Args>(args)...));
}

/// Text for people that moves the cursor itself. REQUIRES: nothing in it comes from others.
void draw(std::string_view text);
/// Shows how far work is, where a person looks on; else nothing to call. REQUIRES: nothing in `what` comes from others.
std::function<void(std::int64_t done, std::int64_t all)> progress_line(std::string what);
/// As draw, from a signal handler: what can be written at once.
void say_now(std::string_view text) noexcept;
/// From here on a reader of stderr that takes nothing is waited for a second at most, once.
void never_wait_for_readers();

/// Shows the results so far. Throws IoError where they cannot be written.
void flush_results();

/// For main, before anything is opened: a standard stream that is closed is held open by something that takes nothing,
/// so that no file of ours becomes it; a reader that is gone is an error of writing, not a signal.
void guard_streams();
/// For main, at the end: `code`, or kInputOutput where results could not be written. A reader that has seen enough (`|
/// head`) gets no message.
int finish(int code);

}  // namespace trainer::tools
