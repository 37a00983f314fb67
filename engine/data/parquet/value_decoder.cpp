// One decoder for each encoding and kind of value.
#include "engine/data/parquet/value_decoder.h"

#include <array>
#include <string>

#include "engine/data/parquet/bits.h"
#include "engine/data/parquet/delta_decoder.h"
#include "engine/data/parquet/hybrid_decoder.h"

namespace trainer::data::parquet {
namespace {

std::string_view take_text(std::string_view& bytes) { return take_bytes(bytes, take_u32(bytes)); }

class PlainNumbers final : public ValueDecoder {
 public:
  PlainNumbers(std::string_view values, std::size_t bytes) : values_(values), bytes_(bytes) {}
  std::string_view next() override { return take_bytes(values_, bytes_); }

 private:
  std::string_view values_;
  std::size_t bytes_;
};

class PlainTexts final : public ValueDecoder {
 public:
  explicit PlainTexts(std::string_view values) : values_(values) {}
  std::string_view next() override { return take_text(values_); }

 private:
  std::string_view values_;
};

constexpr std::array<char, 2> kBooleans = {0, 1};

class PlainBooleans final : public ValueDecoder {
 public:
  explicit PlainBooleans(std::string_view values) : values_(values) {}

  std::string_view next() override {
    if (bit_ / 8 >= values_.size()) throw Damaged("a page's values end too early");
    return {&kBooleans[bits_at(values_, bit_++, 1)], 1};
  }

 private:
  std::string_view values_;
  std::uint64_t bit_ = 0;
};

class RunBooleans final : public ValueDecoder {
 public:
  explicit RunBooleans(std::string_view values) {
    const std::uint32_t bytes = take_u32(values);
    runs_ = HybridDecoder(take_bytes(values, bytes), 1);
  }
  std::string_view next() override { return {&kBooleans[runs_.next() & 1], 1}; }

 private:
  HybridDecoder runs_;
};

class DictionaryValues final : public ValueDecoder {
 public:
  DictionaryValues(std::string_view values, const Dictionary& dictionary) : dictionary_(dictionary) {
    if (values.empty()) return;  // a page of nulls has none
    const int width = static_cast<std::uint8_t>(take_bytes(values, 1)[0]);
    indices_ = HybridDecoder(values, width);
  }
  std::string_view next() override { return dictionary_.at(indices_.next()); }

 private:
  const Dictionary& dictionary_;
  HybridDecoder indices_;
};

class DeltaNumbers final : public ValueDecoder {
 public:
  DeltaNumbers(std::string_view values, std::size_t bytes) : deltas_(values), bytes_(bytes) {}

  std::string_view next() override {
    const std::int64_t value = deltas_.next();
    std::memcpy(value_.data(), &value, value_.size());
    return {value_.data(), bytes_};
  }

 private:
  DeltaDecoder deltas_;
  std::array<char, 8> value_{};
  std::size_t bytes_;
};

// The lengths of all texts as deltas, then their bytes.
class DeltaTexts final : public ValueDecoder {
 public:
  DeltaTexts() = default;
  explicit DeltaTexts(std::string_view values) : lengths_(values) {
    DeltaDecoder lengths = lengths_;
    texts_ = lengths.rest();
  }

  std::string_view next() override {
    // A negative length, without its sign, is longer than any page.
    return take_bytes(texts_, static_cast<std::uint32_t>(lengths_.next()));
  }

 private:
  DeltaDecoder lengths_;
  std::string_view texts_;
};

// For each text, how many bytes it shares with the start of the one before (as deltas); then the rest of each, as
// DeltaTexts.
class DeltaSharedTexts final : public ValueDecoder {
 public:
  DeltaSharedTexts(std::string_view values, std::size_t bytes) : shared_(values), bytes_(bytes) {
    DeltaDecoder shared = shared_;
    ends_ = DeltaTexts(shared.rest());
  }

  std::string_view next() override {
    const auto shared = static_cast<std::uint32_t>(shared_.next());
    if (shared > value_.size()) throw Damaged("a value shares more with the one before than that has");
    value_.resize(shared);
    value_ += ends_.next();
    if (bytes_ != 0 && value_.size() != bytes_) throw Damaged("a value of fixed size has another size");
    return value_;
  }

 private:
  DeltaDecoder shared_;
  DeltaTexts ends_;
  std::string value_;
  std::size_t bytes_;  // of a value of fixed size, else 0
};

// The first bytes of all values, then the second ones, and so on.
class SplitNumbers final : public ValueDecoder {
 public:
  SplitNumbers(std::string_view values, std::size_t bytes)
      : values_(values), value_(bytes, '\0'), count_(values.size() / bytes) {
    if (values.size() % bytes != 0) throw Damaged("a page of split bytes has no whole number of values");
  }

  std::string_view next() override {
    if (at_ == count_) throw Damaged("a page's values end too early");
    for (std::size_t i = 0; i < value_.size(); ++i) value_[i] = values_[i * count_ + at_];
    ++at_;
    return value_;
  }

 private:
  std::string_view values_;
  std::string value_;
  std::size_t count_, at_ = 0;
};

[[noreturn]] void throw_bad_encoding(const char* name) {
  throw Damaged(std::string("a page is in the encoding ") + name + ", which its type does not have");
}

std::unique_ptr<ValueDecoder> make_plain(const Leaf& leaf, std::string_view values) {
  if (leaf.type == Physical::boolean) return std::make_unique<PlainBooleans>(values);
  if (leaf.type == Physical::byte_array) return std::make_unique<PlainTexts>(values);
  return std::make_unique<PlainNumbers>(values, leaf.type_bytes);
}

}  // namespace

Dictionary::Dictionary(const Leaf& leaf, std::string_view page, std::uint64_t num_values)
    : page_(page), value_bytes_(leaf.type_bytes), size_(static_cast<std::size_t>(num_values)) {
  if (leaf.type == Physical::boolean) throw Damaged("a column of booleans has a dictionary");
  if (leaf.type != Physical::byte_array) {
    if (num_values > page.size() / value_bytes_) throw Damaged("a dictionary ends too early");
    return;
  }
  if (num_values > page.size() / 4) throw Damaged("a dictionary ends too early");
  texts_.reserve(size_);
  for (std::size_t i = 0; i < size_; ++i) texts_.push_back(take_text(page));
}

void Dictionary::throw_no_value(std::uint32_t index) const {
  throw Damaged("a page names value " + std::to_string(index) + " of a dictionary of " + std::to_string(size_));
}

std::unique_ptr<ValueDecoder> make_decoder(Encoding encoding, const Leaf& leaf, std::string_view values,
                                           const Dictionary* dictionary) {
  const bool texts = leaf.type == Physical::byte_array, fixed = leaf.type == Physical::fixed_bytes;
  const bool integers = leaf.type == Physical::int32 || leaf.type == Physical::int64;
  const bool floats = leaf.type == Physical::float32 || leaf.type == Physical::float64;
  switch (encoding) {
    case Encoding::plain:
      return make_plain(leaf, values);
    case Encoding::plain_dictionary:
    case Encoding::rle_dictionary:
      if (dictionary == nullptr) throw Damaged("a page needs a dictionary, and there is none before it");
      return std::make_unique<DictionaryValues>(values, *dictionary);
    case Encoding::rle:
      if (leaf.type != Physical::boolean) throw_bad_encoding("RLE");
      return std::make_unique<RunBooleans>(values);
    case Encoding::delta_binary_packed:
      if (!integers) throw_bad_encoding("DELTA_BINARY_PACKED");
      return std::make_unique<DeltaNumbers>(values, leaf.type_bytes);
    case Encoding::delta_length_byte_array:
      if (!texts) throw_bad_encoding("DELTA_LENGTH_BYTE_ARRAY");
      return std::make_unique<DeltaTexts>(values);
    case Encoding::delta_byte_array:
      if (!texts && !fixed) throw_bad_encoding("DELTA_BYTE_ARRAY");
      return std::make_unique<DeltaSharedTexts>(values, leaf.type_bytes);
    case Encoding::byte_stream_split:
      if (!integers && !floats && !fixed) throw_bad_encoding("BYTE_STREAM_SPLIT");
      return std::make_unique<SplitNumbers>(values, leaf.type_bytes);
    case Encoding::bit_packed:
      break;
  }
  throw Unsupported("a page is in encoding " + std::to_string(static_cast<std::int32_t>(encoding)) +
                    ", which is not known");
}

}  // namespace trainer::data::parquet
