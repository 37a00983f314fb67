// The metadata of a Parquet file: its footer, row groups and page headers, as parquet.thrift defines them.
// Source: github.com/apache/parquet-format, src/main/thrift/parquet.thrift. Only what reading needs is kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/parquet/compact_reader.h"

namespace trainer::data::parquet {

// Numbers as in the format; a file may hold others.
enum class Physical : std::int32_t { boolean, int32, int64, int96, float32, float64, byte_array, fixed_bytes };
enum class Repetition : std::int32_t { required, optional, repeated };
enum class Codec : std::int32_t { none, snappy, gzip, lzo, brotli, lz4, zstd, lz4_raw };
enum class Encoding : std::int32_t {
  plain = 0,
  plain_dictionary = 2,
  rle = 3,
  bit_packed = 4,
  delta_binary_packed = 5,
  delta_length_byte_array = 6,
  delta_byte_array = 7,
  rle_dictionary = 8,
  byte_stream_split = 9,
};
enum class PageType : std::int32_t { data, index, dictionary, data_v2 };

/// What a column's values mean: LogicalType, or what older files have in its place, ConvertedType.
enum class Logical {
  none,
  string,  ///< also enums and JSON documents, which stay strings
  map,
  list,
  decimal,
  integer,
  number,  ///< dates, times and timestamps: their numbers
  uuid,
  float16,
  null,
  unsupported,
};

/// A node of the schema, in the order of a walk from the root down.
struct SchemaElement {
  std::optional<Physical> type;  ///< of a leaf
  std::int32_t type_length = 0;  ///< of fixed_bytes
  Repetition repetition = Repetition::required;
  std::string name;
  std::int32_t num_children = 0;
  Logical logical = Logical::none;
  std::int32_t scale = 0;    ///< of a decimal
  bool is_signed = true;     ///< of an integer
  std::string logical_name;  ///< of an unsupported one, as messages name it
};

/// A column of a row group.
struct ColumnChunk {
  bool encrypted = false;
  bool elsewhere = false;  ///< in another file
  Physical type = Physical::boolean;
  Codec codec = Codec::none;
  std::int64_t num_values = 0;        ///< including nulls and empty lists
  std::int64_t compressed_bytes = 0;  ///< of all pages with their headers
  std::int64_t first_page = 0;        ///< offset in the file
};

struct RowGroup {
  std::vector<ColumnChunk> columns;
  std::int64_t num_rows = 0;
};

struct Footer {
  std::vector<SchemaElement> schema;
  std::int64_t num_rows = 0;  ///< those of the row groups; some writers leave the file's own number at 0
  bool encrypted = false;
  std::size_t row_groups = 0;  ///< where in the footer the first one begins
};

struct PageHeader {
  PageType type = PageType::data;
  std::int32_t uncompressed_bytes = 0, compressed_bytes = 0;
  std::optional<std::uint32_t> crc;
  std::int32_t num_values = 0;
  Encoding encoding = Encoding::plain;
  Encoding definition_encoding = Encoding::rle, repetition_encoding = Encoding::rle;  ///< of `data`
  std::int32_t definition_bytes = 0, repetition_bytes = 0;                            ///< of `data_v2`
  bool compressed = true;                                                             ///< of `data_v2`
};

/// All three raise Damaged and Unsupported. The footer's row groups are not kept, only where they begin: a file may
/// have millions of column chunks, and its reader needs those of one group at a time.
Footer read_footer(std::string_view bytes);
/// The row group at `at` of the footer, which moves behind it; a file has `num_columns`.
RowGroup read_row_group(std::string_view footer, std::size_t num_columns, std::size_t& at);
/// The header at the start of `bytes`; adds its length to `length`. Raises CutOff if `bytes` end before it does.
PageHeader read_page_header(std::string_view bytes, std::size_t& length);

}  // namespace trainer::data::parquet
