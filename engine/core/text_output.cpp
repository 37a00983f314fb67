// A pipe or terminal is opened a second time without blocking. Where that is not allowed, writes are as short as a pipe
// that poll calls ready is sure to take.
#include "engine/core/text_output.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>

namespace trainer {

using Clock = std::chrono::steady_clock;

TextOutput::TextOutput(int descriptor) : descriptor_(descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return;
  socket_ = S_ISSOCK(status.st_mode);
  if (!S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode)) return;
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  own_ = Descriptor(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

void TextOutput::write(std::string_view text, int patience_ms) {
  const std::lock_guard lock(writing_);
  const bool limited = patience_ms != kForever;
  const Clock::time_point until = Clock::now() + std::chrono::milliseconds(limited && !stalled_ ? patience_ms : 0);
  while (!text.empty()) {
    const long taken = take(text);
    if (taken < 0) return;
    text.remove_prefix(static_cast<std::size_t>(taken));
    if (taken > 0) {
      stalled_ = false;
      continue;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    stalled_ = limited && (left <= 0 || !ready(static_cast<int>(left)));
    if (stalled_) return;
    if (!limited) ready(kForever);
  }
}

void TextOutput::write_now(std::string_view text) const noexcept {
  const int error = errno;
  take(text);
  errno = error;
}

long TextOutput::take(std::string_view text) const noexcept {
  ssize_t taken = 0;
  if (socket_)
    taken = ::send(descriptor_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  else if (own_)
    taken = ::write(own_.get(), text.data(), text.size());
  else if (ready(0))
    taken = ::write(descriptor_, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
  if (taken >= 0) return taken;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

bool TextOutput::ready(int patience_ms) const noexcept {
  pollfd one{own_ ? own_.get() : descriptor_, POLLOUT, 0};
  return ::poll(&one, 1, patience_ms) > 0;
}

}  // namespace trainer
