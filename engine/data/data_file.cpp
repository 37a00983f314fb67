// How a data file is read: small files are kept in memory, larger ones are read by offset.
#include "engine/data/data_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/error.h"

namespace trainer::data {
namespace {

constexpr std::int64_t kSmallBytes = std::int64_t{1} << 20;  // below this a descriptor costs more than a copy
constexpr std::int64_t kPassBytes = std::int64_t{1} << 20;   // of a pass over a file: fits a core's cache

Descriptor open_again(const std::string& path) {
  try {
    return open_for_reading(path);
  } catch (const DataError& error) {
    throw IoError(std::string(error.what()) + " any more: data must stay where it is while it is read");
  }
}

}  // namespace

DataFile::DataFile(std::string path, Keep keep) : path_(std::move(path)) {
  Descriptor file = open_for_reading(path_);
  bytes_ = file_size(file, path_);
  if (bytes_ < kSmallBytes) {
    text_.resize(static_cast<std::size_t>(bytes_));
    read_at(file, 0, text_.data(), text_.size(), path_);
  } else if (keep == Keep::open) {
    file_ = std::move(file);
  }
}

void DataFile::read(std::int64_t offset, void* out, std::size_t bytes) const {
  CHECK(offset >= 0 && offset + static_cast<std::int64_t>(bytes) <= bytes_, "a part lies in its file");
  if (bytes_ < kSmallBytes) {
    if (bytes > 0) std::memcpy(out, text_.data() + offset, bytes);
    return;
  }
  const Descriptor opened = file_ ? Descriptor() : open_again(path_);
  const Descriptor& file = file_ ? file_ : opened;
  if (read_some_at(file, offset, out, bytes, path_) == bytes) return;
  throw IoError(path_ + ": the file became shorter while it was in use: it had " + std::to_string(bytes_) +
                " bytes and now has " + std::to_string(file_size(file, path_)));
}

std::string DataFile::head(std::size_t most) const {
  std::string head(static_cast<std::size_t>(std::min(bytes_, static_cast<std::int64_t>(most))), '\0');
  read(0, head.data(), head.size());
  return head;
}

void DataFile::fail(std::int64_t offset, const std::string& what) const {
  throw DataError(path_ + ": offset " + std::to_string(offset) + ": " + what);
}

std::string_view BlockReader::next(std::int64_t keep_from) {
  CHECK(keep_from >= first_ && keep_from <= end_, "what is kept was read");
  block_.erase(0, static_cast<std::size_t>(keep_from - first_));
  first_ = keep_from;
  const std::size_t kept = block_.size();
  // What is kept may be longer than a block (a line of a table, say): the buffer grows with it, so that a pass stays
  // linear.
  const std::int64_t more = std::min(std::max(kPassBytes, static_cast<std::int64_t>(kept)), file_.bytes() - end_);
  block_.resize(kept + static_cast<std::size_t>(more));
  file_.read(end_, block_.data() + kept, static_cast<std::size_t>(more));
  end_ += more;
  return block_;
}

}  // namespace trainer::data
