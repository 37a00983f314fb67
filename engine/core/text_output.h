// TextOutput: text for people on a descriptor whose reader may be slow, stalled (Ctrl-S, a full pipe) or gone, on a
// disk that may be full. Writing never throws and, where the caller sets a limit, does not block beyond it: text that
// is not taken by then is dropped, because no work may be lost or held up for its messages. The caller's descriptor
// keeps its flags, which other processes may share.
#pragma once

#include <mutex>
#include <string_view>

#include "engine/core/file.h"

namespace trainer {

class TextOutput {
 public:
  static constexpr int kForever = -1;

  /// REQUIRES: `descriptor` stays open. SIGPIPE is ignored, or a reader that is gone ends the process.
  explicit TextOutput(int descriptor);

  /// Waits at most `patience_ms` in all for the reader. After a wait that was in vain the next calls with a limit do
  /// not wait, until the reader takes something. Any thread may call it.
  void write(std::string_view text, int patience_ms);

  /// What can be written at once, for signal handlers: no lock, no memory. May mix with a line of write.
  void write_now(std::string_view text) const noexcept;

 private:
  // How many bytes were taken; 0: none at present, -1: none ever.
  long take(std::string_view text) const noexcept;
  bool ready(int patience_ms) const noexcept;

  int descriptor_;
  Descriptor own_;  // the same pipe or terminal, opened again, so that it alone does not block
  bool socket_ = false;
  std::mutex writing_;
  bool stalled_ = false;
};

}  // namespace trainer
