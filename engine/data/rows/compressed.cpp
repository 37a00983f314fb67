// What gzip and zstd share: blocks of the file and the errors for a damaged one.
#include "engine/data/rows/compressed.h"

#include <algorithm>
#include <string>

namespace trainer::data {
namespace {

using namespace std::string_view_literals;

constexpr std::int64_t kCompressedBytes = std::int64_t{1} << 18;

}  // namespace

bool is_gzip(std::string_view head) { return head.starts_with("\x1F\x8B"sv); }

bool is_zstd(std::string_view head) {
  // A frame, or a skippable frame, with which pzstd begins.
  return head.starts_with("\x28\xB5\x2F\xFD"sv) ||
         (head.size() >= 4 && (head[0] & 0xF0) == 0x50 && head.substr(1, 3) == "\x2A\x4D\x18"sv);
}

std::string_view CompressedInput::next() {
  const std::int64_t bytes = std::min(kCompressedBytes, file_.bytes() - end_);
  block_.resize(static_cast<std::size_t>(bytes));
  file_.read(end_, block_.data(), block_.size());
  end_ += bytes;
  return {block_.data(), block_.size()};
}

void CompressedInput::fail_cut_off() const {
  file_.fail(end_, "the compressed data does not end where the file ends: it was cut off; copy or download it again");
}

void CompressedInput::fail_damaged(std::size_t left, const char* why) const {
  file_.fail(bytes_read(left), "the compressed data is damaged (" + std::string(why) + "); copy or download it again");
}

}  // namespace trainer::data
