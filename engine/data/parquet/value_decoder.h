// Values of a page, one after another, in each of Parquet's encodings.
// Source: parquet-format, Encodings.md.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/data/parquet/schema.h"

namespace trainer::data::parquet {

class ValueDecoder {
 public:
  virtual ~ValueDecoder() = default;
  /// The next value: the bytes of a byte array or of a little-endian number; a boolean is one byte. Valid until the
  /// next call. Raises Damaged after the last value.
  virtual std::string_view next() = 0;
};

/// The values of a column chunk to which its pages refer by index.
class Dictionary {
 public:
  Dictionary() = default;
  /// The values of a dictionary page, which must outlive it.
  Dictionary(const Leaf& leaf, std::string_view page, std::uint64_t num_values);

  /// Raises Damaged if there is no such value.
  std::string_view at(std::uint32_t index) const {
    if (index >= size_) throw_no_value(index);
    if (value_bytes_ == 0) return texts_[index];
    return page_.substr(index * value_bytes_, value_bytes_);
  }

 private:
  [[noreturn]] void throw_no_value(std::uint32_t index) const;

  std::vector<std::string_view> texts_;
  std::string_view page_;
  std::size_t value_bytes_ = 0, size_ = 0;
};

/// `values`, and `dictionary` if there is one, must outlive it. Raises Damaged, and Unsupported for an encoding that is
/// not known.
std::unique_ptr<ValueDecoder> make_decoder(Encoding encoding, const Leaf& leaf, std::string_view values,
                                           const Dictionary* dictionary);

}  // namespace trainer::data::parquet
