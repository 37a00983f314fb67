// One line on a terminal that is overwritten as measuring goes on; nothing where stderr is not a terminal.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "tools/output.h"

namespace trainer::tools {

class ProgressLine {
 public:
  explicit ProgressLine(std::size_t total) : total_(total), shown_(::isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() {
    if (shown_) draw("\r\033[K");
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void next(const std::string& what) {
    ++done_;
    if (!shown_ || Clock::now() < due_) return;
    due_ = Clock::now() + std::chrono::milliseconds(100);
    draw(fmt::format("\r\033[K{:3.0f}%  {}", 100.0 * static_cast<double>(done_) / static_cast<double>(total_), what));
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::size_t total_, done_ = 0;
  bool shown_;
  Clock::time_point due_{};
};

}  // namespace trainer::tools
