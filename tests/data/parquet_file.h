// Parquet files put together by hand from the format's definition, for what no writer at hand makes: lists of older
// files, and files that lie. Source: github.com/apache/parquet-format.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainer::tests {

/// A struct in Thrift's compact protocol, field by field.
class Thrift {
 public:
  Thrift& i32(int id, std::int64_t value) { return head(id, 5).zigzag(value); }
  Thrift& i64(int id, std::int64_t value) { return head(id, 6).zigzag(value); }
  Thrift& text(int id, std::string_view value) { return head(id, 8).varint(value.size()).raw(value); }
  Thrift& structure(int id, const Thrift& value) { return head(id, 12).raw(value.done()); }
  Thrift& list(int id, const std::vector<Thrift>& values) {
    head(id, 9).raw("\xFC").varint(values.size());
    for (const Thrift& value : values) raw(value.done());
    return *this;
  }
  std::string done() const { return bytes_ + '\0'; }

 private:
  Thrift& head(int id, int type) {
    bytes_ += static_cast<char>((id - last_) << 4 | type);
    last_ = id;
    return *this;
  }
  Thrift& zigzag(std::int64_t value) {
    return varint(static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63));
  }
  Thrift& varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }
  Thrift& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }

  std::string bytes_;
  int last_ = 0;
};

inline std::string u32(std::uint32_t value) { return {reinterpret_cast<const char*>(&value), 4}; }
inline std::string i32s(const std::vector<std::int32_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 4};
}

/// Levels as a data page has them: their length, then one bit-packed run of `width` bits each.
inline std::string levels(const std::vector<int>& values, int width) {
  const std::size_t groups = (values.size() + 7) / 8;
  std::string packed(groups * static_cast<std::size_t>(width), '\0');
  for (std::size_t i = 0; i < values.size(); ++i)
    for (int bit = 0; bit < width; ++bit)
      if ((values[i] >> bit & 1) != 0) {
        const std::size_t at = i * static_cast<std::size_t>(width) + static_cast<std::size_t>(bit);
        packed[at / 8] = static_cast<char>(packed[at / 8] | 1 << at % 8);
      }
  const std::string run = std::string(1, static_cast<char>(groups << 1 | 1)) + packed;
  return u32(static_cast<std::uint32_t>(run.size())) + run;
}

/// Levels as runs of one value, below 256: pairs of count and value.
inline std::string level_runs(const std::vector<std::pair<std::uint64_t, int>>& runs) {
  std::string bytes;
  for (auto [count, value] : runs) {
    for (count <<= 1; count >= 0x80; count >>= 7) bytes += static_cast<char>(count | 0x80);
    bytes += static_cast<char>(count);
    bytes += static_cast<char>(value);
  }
  return u32(static_cast<std::uint32_t>(bytes.size())) + bytes;
}

/// Pages with their headers; sizes as `uncompressed` says, or else the body's.
inline std::string data_page(std::int64_t num_values, int encoding, const std::string& body,
                             std::int64_t uncompressed = -1) {
  const auto bytes = static_cast<std::int64_t>(body.size());
  Thrift header;
  header.i32(1, 0).i32(2, uncompressed < 0 ? bytes : uncompressed).i32(3, bytes);
  header.structure(5, Thrift().i32(1, num_values).i32(2, encoding).i32(3, 3).i32(4, 3));
  return header.done() + body;
}
inline std::string dictionary_page(std::int64_t num_values, const std::string& body) {
  const auto bytes = static_cast<std::int64_t>(body.size());
  Thrift header;
  header.i32(1, 2).i32(2, bytes).i32(3, bytes).structure(7, Thrift().i32(1, num_values).i32(2, 0));
  return header.done() + body;
}

/// Elements of a schema. `repetition`: 0 required, 1 optional, 2 repeated; `converted`: -1 for none, 3 for a list.
inline Thrift leaf(std::string_view name, int repetition, int type, int converted = -1) {
  Thrift element;
  element.i32(1, type).i32(3, repetition).text(4, name);
  return converted < 0 ? element : element.i32(6, converted);
}
inline Thrift group(std::string_view name, int repetition, int children, int converted = -1) {
  Thrift element;
  element.i32(3, repetition).text(4, name).i32(5, children);
  return converted < 0 ? element : element.i32(6, converted);
}

struct HandColumn {
  int type = 1;  ///< INT32
  std::int64_t num_values = 0;
  std::string pages{};
  int codec = 0;
  bool encrypted = false;
  std::int64_t bytes = -1;  ///< as the footer gives them; -1: those of the pages
};

/// A file of one row group. `schema` begins with the root's fields: the root itself is put before them.
inline std::string parquet_file(int num_fields, std::vector<Thrift> schema, const std::vector<HandColumn>& columns,
                                std::int64_t num_rows) {
  schema.insert(schema.begin(), group("root", 0, num_fields));
  std::string file = "PAR1";
  std::vector<Thrift> chunks;
  for (const HandColumn& column : columns) {
    const auto start = static_cast<std::int64_t>(file.size()), bytes = static_cast<std::int64_t>(column.pages.size());
    Thrift metadata;
    metadata.i32(1, column.type).i32(4, column.codec).i64(5, column.num_values);
    metadata.i64(7, column.bytes < 0 ? bytes : column.bytes).i64(9, start);
    chunks.push_back(Thrift().i64(2, 0).structure(3, metadata));
    if (column.encrypted) chunks.back().structure(8, Thrift());
    file += column.pages;
  }
  Thrift footer;
  footer.i32(1, 1).list(2, schema).i64(3, num_rows).list(4, {Thrift().list(1, chunks).i64(2, 0).i64(3, num_rows)});
  const std::string metadata = footer.done();
  return file + metadata + u32(static_cast<std::uint32_t>(metadata.size())) + "PAR1";
}

}  // namespace trainer::tests
