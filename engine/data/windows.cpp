// Windows over tokens.
#include "engine/data/windows.h"

#include <algorithm>
#include <cstring>

#include "engine/core/check.h"

namespace trainer::data {
namespace {

class Windows final : public Dataset {
 public:
  Windows(std::shared_ptr<const TokenStream> stream, std::int64_t first, std::int64_t count, std::int64_t seq_len)
      : stream_(std::move(stream)),
        first_(first),
        seq_len_(seq_len),
        num_samples_(std::max<std::int64_t>(0, count - 1) / seq_len),
        fields_{{"tokens", DType::i32, Shape{seq_len}}, {"targets", DType::i32, Shape{seq_len}}} {
    CHECK(seq_len > 0 && first >= 0 && first + count <= stream_->num_tokens(), "windows lie in their stream");
  }

  std::int64_t num_samples() const override { return num_samples_; }
  const std::vector<SampleField>& fields() const override { return fields_; }

  void read(std::int64_t sample, std::span<std::byte* const> out) const override {
    std::vector<std::int32_t> ids(
        static_cast<std::size_t>(seq_len_ + 1));  // read at once: a second read costs as much as the first
    stream_->read(first_ + sample * seq_len_, seq_len_ + 1, ids.data());
    const std::size_t bytes = static_cast<std::size_t>(seq_len_) * sizeof ids.front();
    std::memcpy(out[0], ids.data(), bytes);
    std::memcpy(out[1], ids.data() + 1, bytes);
  }

 private:
  std::shared_ptr<const TokenStream> stream_;
  std::int64_t first_, seq_len_, num_samples_;
  std::vector<SampleField> fields_;
};

}  // namespace

std::shared_ptr<const Dataset> windows(std::shared_ptr<const TokenStream> stream, std::int64_t first,
                                       std::int64_t count, std::int64_t seq_len) {
  return std::make_shared<Windows>(std::move(stream), first, count, seq_len);
}

}  // namespace trainer::data
