// How ids are read across files and checked against the vocabulary.
#include "engine/data/id_stream.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"

namespace trainer::data {
namespace {

constexpr std::int64_t kReadBytes = 16384;  // of one read
constexpr std::int64_t kSmallBytes = std::int64_t{64} << 20, kSampleIds = 32768, kSamples = 256;

// Ids of `bytes` widened to i32; returns the largest, as the file has it.
template <typename Id>
std::uint32_t widen(const char* bytes, std::int64_t count, std::int32_t* out) {
  Id largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Id id;
    std::memcpy(&id, bytes + i * static_cast<std::int64_t>(sizeof id), sizeof id);
    largest = std::max(largest, id);
    out[i] = static_cast<std::int32_t>(id);
  }
  return largest;
}

}  // namespace

IdStream::IdStream(const std::vector<std::string>& paths, std::optional<TokenType> type, std::int64_t limit)
    : corpus_(paths), type_(type), limit_(limit > 0 ? limit : INT32_MAX) {
  for (const Corpus::File& file : corpus_.files()) {
    files_.push_back({id_layout(file.data, type), num_tokens_});
    num_tokens_ += files_.back().layout.ids;
  }
}

void IdStream::read(std::int64_t first, std::int64_t count, std::int32_t* out) const {
  const auto after = std::upper_bound(files_.begin(), files_.end(), first,
                                      [](std::int64_t at, const File& file) { return at < file.start; });
  for (auto file = static_cast<std::size_t>(after - files_.begin()) - 1; count > 0; ++file) {
    const std::int64_t skip = first - files_[file].start, part = std::min(count, files_[file].layout.ids - skip);
    read_part(file, skip, part, out);
    first += part, count -= part, out += part;
  }
}

void IdStream::read_part(std::size_t file, std::int64_t first, std::int64_t count, std::int32_t* out) const {
  const IdLayout& layout = files_[file].layout;
  char bytes[kReadBytes];
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t part = std::min(count - done, kReadBytes / layout.id_bytes);
    corpus_.files()[file].data.read(layout.first_byte + (first + done) * layout.id_bytes, bytes,
                                    static_cast<std::size_t>(part * layout.id_bytes));
    const std::uint32_t largest = layout.id_bytes == 2 ? widen<std::uint16_t>(bytes, part, out + done)
                                                       : widen<std::uint32_t>(bytes, part, out + done);
    if (static_cast<std::int64_t>(largest) >= limit_)
      for (std::int64_t i = done; i < done + part; ++i)
        if (const auto id = static_cast<std::uint32_t>(out[i]); static_cast<std::int64_t>(id) >= limit_)
          fail(file, first + i, id);
    done += part;
  }
}

void IdStream::fail(std::size_t file, std::int64_t index, std::uint32_t id) const {
  const IdLayout& layout = files_[file].layout;
  std::string advice = "; the model's vocabulary must have at least " + std::to_string(std::int64_t{id} + 1) + " rows";
  if (layout.flat) advice += ", or data.token_type is not " + std::string(layout.id_bytes == 2 ? "u16" : "u32");
  corpus_.files()[file].data.fail(
      layout.first_byte + index * layout.id_bytes,
      "token id " + std::to_string(id) + " is outside of the vocabulary of " + std::to_string(limit_) + advice);
}

void IdStream::check(Check check) const {
  for (std::size_t file = 0; file < files_.size(); ++file) {
    const auto [layout, start] = files_[file];
    if (layout.flat && layout.id_bytes == 2 && !type_) suspect_wide_ids(file);
    const std::int64_t samples =
        std::max<std::int64_t>(2, kSamples * layout.ids / std::max<std::int64_t>(1, num_tokens_));
    if (check == Check::all || corpus_.bytes() <= kSmallBytes || layout.ids <= samples * kSampleIds) {
      check_part(start, layout.ids);
      continue;
    }
    const std::int64_t last = layout.ids - kSampleIds, stride = last / (samples - 1);
    for (std::int64_t i = 0; i < samples - 1; ++i) check_part(start + i * stride, kSampleIds);
    check_part(start + last, kSampleIds);
  }
}

void IdStream::check_part(std::int64_t first, std::int64_t count) const {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(count, kSampleIds)));
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t part = std::min(count - done, kSampleIds);
    read(first + done, part, ids.data());
    done += part;
  }
}

// Ids of four bytes read as two: every second one is 0.
void IdStream::suspect_wide_ids(std::size_t file) const {
  constexpr std::int64_t kLeast = 64;
  const File& at = files_[file];
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(at.layout.ids / 2 * 2, kSampleIds)));
  if (static_cast<std::int64_t>(ids.size()) < kLeast) return;
  read(at.start, static_cast<std::int64_t>(ids.size()), ids.data());
  bool low = false, high = false;  // whether there is one that is not 0
  for (std::size_t i = 0; i < ids.size(); i += 2) low = low || ids[i] != 0, high = high || ids[i + 1] != 0;
  if (low && !high)
    throw DataError(corpus_.files()[file].data.path() +
                    ": every second id is 0, as if ids of 4 bytes were read as 2; write `token_type: u32`, or "
                    "`token_type: u16` if it is right");
}

}  // namespace trainer::data
