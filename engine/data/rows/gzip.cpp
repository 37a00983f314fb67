// gzip by zlib. A file may have several members (bgzip writes them, and `cat a.gz b.gz`), and zeros after the last one,
// which gzip takes for padding.
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>

#include "engine/core/check.h"
#include "engine/data/rows/compressed.h"

namespace trainer::data {
namespace {

constexpr int kGzip = 16 + MAX_WBITS;  // gzip's header and trailer, the largest window

class GzipBytes final : public ByteSource {
 public:
  explicit GzipBytes(DataFile file) : input_(std::move(file)) {
    if (inflateInit2(&stream_, kGzip) != Z_OK) throw std::bad_alloc();
  }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;
  ~GzipBytes() override { inflateEnd(&stream_); }

  std::size_t read(char* out, std::size_t bytes) override {
    const auto room = static_cast<uInt>(std::min<std::size_t>(bytes, std::numeric_limits<uInt>::max()));
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = room;
    while (stream_.avail_out == room) {
      if (stream_.avail_in == 0 && !refill()) {
        if (in_member_) input_.fail_cut_off();
        return 0;
      }
      if (!in_member_ && !begin_member()) continue;
      inflate_some();
    }
    return room - stream_.avail_out;
  }

  std::int64_t bytes_read() const override { return input_.bytes_read(stream_.avail_in); }

 private:
  bool refill() {
    const std::string_view block = input_.next();
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));
    stream_.avail_in = static_cast<uInt>(block.size());
    return !block.empty();
  }

  // Whether a member begins here; skips a byte of padding. REQUIRES: there is input.
  bool begin_member() {
    if (*stream_.next_in == 0) {
      padded_ = true;
      ++stream_.next_in, --stream_.avail_in;
      return false;
    }
    if (padded_) input_.fail_damaged(stream_.avail_in, "data follows the padding");
    CHECK(inflateReset(&stream_) == Z_OK, "the stream is initialised");
    return in_member_ = true;
  }

  void inflate_some() {
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    if (result == Z_STREAM_END) in_member_ = false;
    if (result == Z_DATA_ERROR || result == Z_NEED_DICT || result == Z_STREAM_ERROR)
      input_.fail_damaged(stream_.avail_in, stream_.msg != nullptr ? stream_.msg : "it is not gzip");
  }

  CompressedInput input_;
  z_stream stream_{};
  bool in_member_ = true, padded_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> gzip_bytes(DataFile file) { return std::make_unique<GzipBytes>(std::move(file)); }

}  // namespace trainer::data
