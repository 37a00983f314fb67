// CompactReader: Thrift's compact protocol, in which Parquet's footer and page headers are written.
// Source: github.com/apache/thrift, doc/specs/thrift-compact-protocol.md.
// Hostile input is bounded: a list has at most as many elements as bytes are left, and structs nest at most 32 deep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trainer::data::parquet {

class CompactReader {
 public:
  /// REQUIRES: `bytes` outlive it.
  explicit CompactReader(std::string_view bytes, std::size_t at = 0) : bytes_(bytes), at_(at) {}

  /// Calls field(id) for every field of the struct that comes next; it reads the value by one of the functions below,
  /// each of which raises Damaged if the value has another type. A value that it does not read is skipped.
  template <typename Field>
  void fields(Field&& field) {
    enter();
    for (std::int16_t id = 0; begin_field(id);) {
      field(id);
      if (pending_ != kStop) skip();
    }
    --depth_;
  }

  /// Calls element() for every element of the list that comes next; it reads the value as above.
  template <typename Element>
  void list(Element&& element) {
    enter();
    std::uint8_t type = kStop;
    for (std::size_t left = begin_list(type); left > 0; --left) {
      pending_ = type;
      in_list_ = true;
      element();
      if (pending_ != kStop) skip();
    }
    --depth_;
  }

  std::int8_t i8();
  std::int32_t i32();
  std::int64_t i64();
  bool boolean();
  /// Valid as long as the bytes are.
  std::string_view binary();
  /// Reads the current value, a struct; field(id) as above.
  template <typename Field>
  void structure(Field&& field) {
    take(kStruct);
    fields(field);
  }
  void skip();

  std::size_t position() const { return at_; }

 private:
  enum Type : std::uint8_t {
    kStop,
    kTrue,
    kFalse,
    kI8,
    kI16,
    kI32,
    kI64,
    kDouble,
    kBinary,
    kList,
    kSet,
    kMap,
    kStruct
  };

  void enter();
  bool begin_field(std::int16_t& id);
  std::size_t begin_list(std::uint8_t& type);
  void take(std::uint8_t type);
  std::uint8_t byte();
  std::uint64_t varint();
  std::int64_t zigzag();
  void advance(std::uint64_t bytes);
  void skip_map();

  std::string_view bytes_;
  std::size_t at_;
  std::uint8_t pending_ = kStop;  // type of the value that comes next
  bool in_list_ = false;          // there a boolean is a byte; in a struct it is part of the field's type
  int depth_ = 0;
};

}  // namespace trainer::data::parquet
