// Compression of pages, by the libraries of the codecs.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "engine/data/parquet/metadata.h"

namespace trainer::data::parquet {

/// Bytes whose room is used again; new room is not filled, so that a size that a file only claims costs nothing.
class PageBuffer {
 public:
  /// Room for `bytes`; what was there is lost.
  char* room(std::size_t bytes);

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t size_ = 0;
};

/// Raises Unsupported for a codec that is not read.
void check_codec(Codec codec);
/// Unpacks `packed` to exactly `bytes` bytes. Raises Damaged. REQUIRES: a codec that is read, and not `none`.
void unpack(Codec codec, std::string_view packed, char* out, std::size_t bytes);

}  // namespace trainer::data::parquet
