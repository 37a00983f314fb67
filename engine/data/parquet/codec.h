// Decompression of pages, by the libraries of the codecs.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "engine/data/parquet/metadata.h"

namespace trainer::data::parquet {

/// A buffer that is used again. It is not cleared, so a size that a file only claims costs no memory.
class PageBuffer {
 public:
  /// Space for `bytes` bytes; its contents before are lost.
  char* reserve(std::size_t bytes);

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t size_ = 0;
};

/// Raises Unsupported for a codec that is not read.
void check_codec(Codec codec);
/// Decompresses `compressed` to exactly `bytes` bytes. Raises Damaged. REQUIRES: check_codec accepts it, and it is not
/// `none`.
void decompress(Codec codec, std::string_view compressed, char* out, std::size_t bytes);

}  // namespace trainer::data::parquet
