// zstd by libzstd. Large dumps are often compressed with --long=31, so windows of up to 2 GiB are accepted; only files
// that ask for such a window need the memory.
#include <zstd.h>

#include <memory>
#include <new>

#include "engine/data/rows/compressed.h"

namespace trainer::data {
namespace {

constexpr int kLargestWindow = 31;  // log2

struct Free {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

class ZstdBytes final : public ByteSource {
 public:
  explicit ZstdBytes(DataFile file) : input_(std::move(file)), stream_(ZSTD_createDStream()) {
    if (!stream_ || ZSTD_isError(ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kLargestWindow)))
      throw std::bad_alloc();
  }

  std::size_t read(char* out, std::size_t bytes) override {
    ZSTD_outBuffer output{out, bytes, 0};
    while (output.pos == 0) {
      bool ended = false;
      if (block_.pos == block_.size) {
        const std::string_view block = input_.next();
        block_ = {block.data(), block.size(), 0};
        ended = block.empty();
        if (ended && !in_frame_) return 0;
      }
      const std::size_t result = ZSTD_decompressStream(stream_.get(), &output, &block_);
      if (ZSTD_isError(result)) input_.fail_damaged(block_.size - block_.pos, ZSTD_getErrorName(result));
      in_frame_ = result != 0;
      if (ended && in_frame_ && output.pos == 0) input_.fail_cut_off();
    }
    return output.pos;
  }

  std::int64_t bytes_read() const override { return input_.bytes_read(block_.size - block_.pos); }

 private:
  CompressedInput input_;
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  ZSTD_inBuffer block_{nullptr, 0, 0};
  bool in_frame_ = true;
};

}  // namespace

std::unique_ptr<ByteSource> zstd_bytes(DataFile file) { return std::make_unique<ZstdBytes>(std::move(file)); }

}  // namespace trainer::data
