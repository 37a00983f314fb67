// Files that are not compressed, which reader the others take, and how a window's buffer grows.
#include "engine/data/rows/bytes.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "engine/data/rows/compressed.h"

namespace trainer::data {
namespace {

class PartBytes final : public ByteSource {
 public:
  PartBytes(const DataFile& file, std::int64_t first, std::int64_t last) : file_(file), at_(first), last_(last) {}

  std::size_t read(char* out, std::size_t bytes) override {
    const auto count = std::min(static_cast<std::int64_t>(bytes), last_ - at_);
    file_.read(at_, out, static_cast<std::size_t>(count));
    at_ += count;
    return static_cast<std::size_t>(count);
  }
  std::int64_t bytes_read() const override { return at_; }

 private:
  const DataFile& file_;
  std::int64_t at_, last_;
};

class WholeFile final : public ByteSource {
 public:
  explicit WholeFile(DataFile file) : file_(std::move(file)), bytes_(file_, 0, file_.bytes()) {}

  std::size_t read(char* out, std::size_t bytes) override { return bytes_.read(out, bytes); }
  std::int64_t bytes_read() const override { return bytes_.bytes_read(); }

 private:
  DataFile file_;
  PartBytes bytes_;
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(DataFile file) {
  const std::string head = file.head(4);
  if (is_gzip(head)) return gzip_bytes(std::move(file));
  if (is_zstd(head)) return zstd_bytes(std::move(file));
  return std::make_unique<WholeFile>(std::move(file));
}

std::unique_ptr<ByteSource> part_bytes(const DataFile& file, std::int64_t first, std::int64_t last) {
  return std::make_unique<PartBytes>(file, first, last);
}

bool Window::more() {
  if (size_ - last_ < block_bytes_ / 2) make_room();
  const std::size_t got = source_->read(buffer_.get() + last_, size_ - last_);
  last_ += got;
  return got > 0;
}

// Moves the text to the front where that makes half of the buffer free, else to a buffer of twice its size: so a byte
// is moved a few times at most, however long a row is and however little the source gives at a time.
void Window::make_room() {
  const std::size_t held = last_ - first_;
  if (size_ < block_bytes_ || held > size_ / 2) {
    const std::size_t size = std::max(2 * held, block_bytes_);
    auto larger = std::make_unique_for_overwrite<char[]>(size);
    if (held > 0) std::memcpy(larger.get(), buffer_.get() + first_, held);
    buffer_ = std::move(larger);
    size_ = size;
  } else if (held > 0) {
    std::memmove(buffer_.get(), buffer_.get() + first_, held);
  }
  first_ = 0;
  last_ = held;
}

}  // namespace trainer::data
