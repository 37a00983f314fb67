// How lines are read.
#include "tools/lines.h"

#include <unistd.h>

#include <cerrno>

#include "engine/core/error.h"

namespace trainer::tools {

Lines::Lines(const std::string& path) : name_(path == "-" ? "stdin" : path) {
  if (path != "-") file_ = open_for_reading(path);
}

bool Lines::next(std::string& line) {
  line.clear();
  while (true) {
    const std::size_t end = block_.find('\n', at_);
    line.append(block_, at_, end == std::string::npos ? std::string::npos : end - at_);
    at_ = end == std::string::npos ? block_.size() : end + 1;
    if (end != std::string::npos) return ++number_, true;
    if (!read()) return !line.empty() && (++number_, true);
  }
}

void Lines::fail(const std::string& what) const {
  throw DataError(name_ + ":" + std::to_string(number_) + ": " + what);
}

bool Lines::read() {
  block_.resize(1 << 20);
  ssize_t count = 0;
  do count = ::read(file_ ? file_.get() : STDIN_FILENO, block_.data(), block_.size());
  while (count < 0 && errno == EINTR);
  if (count < 0) fail_io(name_, "cannot be read");
  block_.resize(static_cast<std::size_t>(count));
  at_ = 0;
  bytes_ += count;
  return count > 0;
}

}  // namespace trainer::tools
