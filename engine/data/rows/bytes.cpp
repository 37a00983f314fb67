// Plain files, which reader a packed one takes, and how a window's buffer grows.
#include "engine/data/rows/bytes.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "engine/data/rows/packed.h"

namespace trainer::data {
namespace {

class PlainBytes final : public ByteSource {
 public:
  explicit PlainBytes(DataFile file) : file_(std::move(file)) {}

  std::size_t read(char* out, std::size_t bytes) override {
    const auto count = std::min(static_cast<std::int64_t>(bytes), file_.bytes() - at_);
    file_.read(at_, out, static_cast<std::size_t>(count));
    at_ += count;
    return static_cast<std::size_t>(count);
  }

  std::int64_t bytes_read() const override { return at_; }

 private:
  DataFile file_;
  std::int64_t at_ = 0;
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(DataFile file) {
  const std::string head = file.head(4);
  if (is_packed_by_gzip(head)) return gzip_bytes(std::move(file));
  if (is_packed_by_zstd(head)) return zstd_bytes(std::move(file));
  return std::make_unique<PlainBytes>(std::move(file));
}

bool Window::more() {
  const std::size_t held = last_ - first_;
  // A long row fills the buffer again and again: doubling it keeps the pass linear.
  if (const std::size_t needed = std::max(2 * held, block_bytes_); size_ < needed) {
    auto larger = std::make_unique_for_overwrite<char[]>(needed);
    if (held > 0) std::memcpy(larger.get(), buffer_.get() + first_, held);
    buffer_ = std::move(larger);
    size_ = needed;
  } else if (held > 0) {
    std::memmove(buffer_.get(), buffer_.get() + first_, held);
  }
  first_ = 0;
  last_ = held;
  const std::size_t got = source_->read(buffer_.get() + last_, size_ - last_);
  last_ += got;
  return got > 0;
}

}  // namespace trainer::data
