// Fields of parquet.thrift by their numbers.
#include "engine/data/parquet/metadata.h"

#include <utility>

#include "engine/data/parquet/mistakes.h"

namespace trainer::data::parquet {
namespace {

constexpr std::size_t kMostElements = std::size_t{1} << 16;  // of a schema

template <typename Enum>
Enum enumerator(std::int32_t value, std::int32_t last, const char* what) {
  if (value < 0 || value > last) throw Unsupported(std::string(what) + " " + std::to_string(value) + " is not known");
  return static_cast<Enum>(value);
}

void set_logical(SchemaElement& element, Logical logical, const char* name = "") {
  element.logical = logical;
  element.logical_name = name;
}

void read_logical(CompactReader& reader, SchemaElement& element) {
  reader.structure([&](std::int16_t kind) {
    switch (kind) {
      case 1:   // STRING
      case 4:   // ENUM
      case 12:  // JSON
        return set_logical(element, Logical::string);
      case 2:
        return set_logical(element, Logical::map);
      case 3:
        return set_logical(element, Logical::list);
      case 5:
        set_logical(element, Logical::decimal);
        return reader.structure([&](std::int16_t id) {
          if (id == 1) element.scale = reader.i32();
        });
      case 6:  // DATE
      case 7:  // TIME
      case 8:  // TIMESTAMP
        return set_logical(element, Logical::number);
      case 10:
        set_logical(element, Logical::integer);
        return reader.structure([&](std::int16_t id) {
          if (id == 2) element.is_signed = reader.boolean();
        });
      case 11:
        return set_logical(element, Logical::null);
      case 13:
        return set_logical(element, Logical::unsupported, "BSON");
      case 14:
        return set_logical(element, Logical::uuid);
      case 15:
        return set_logical(element, Logical::float16);
      case 16:
        return set_logical(element, Logical::unsupported, "VARIANT");
      case 17:
        return set_logical(element, Logical::unsupported, "GEOMETRY");
      case 18:
        return set_logical(element, Logical::unsupported, "GEOGRAPHY");
      default:  // one of a newer version of the format: values are read as their physical type
        return set_logical(element, Logical::none);
    }
  });
}

// For files that have no LogicalType.
void set_converted(SchemaElement& element, std::int32_t converted) {
  switch (converted) {
    case 0:   // UTF8
    case 4:   // ENUM
    case 19:  // JSON
      return set_logical(element, Logical::string);
    case 1:
    case 2:
      return set_logical(element, Logical::map);
    case 3:
      return set_logical(element, Logical::list);
    case 5:
      return set_logical(element, Logical::decimal);
    case 20:
      return set_logical(element, Logical::unsupported, "BSON");
    case 21:
      return set_logical(element, Logical::unsupported, "INTERVAL");
    default:
      element.is_signed = converted < 11 || converted > 14;  // UINT_8 to UINT_64
      return set_logical(element, converted < 11 ? Logical::number : Logical::integer);
  }
}

SchemaElement read_schema_element(CompactReader& reader) {
  SchemaElement element;
  std::optional<std::int32_t> converted;
  bool has_logical = false;
  reader.structure([&](std::int16_t id) {
    if (id == 1) element.type = enumerator<Physical>(reader.i32(), 7, "a column's type");
    if (id == 2) element.type_length = reader.i32();
    if (id == 3) element.repetition = enumerator<Repetition>(reader.i32(), 2, "a column's repetition");
    if (id == 4) element.name = reader.binary();
    if (id == 5) element.num_children = reader.i32();
    if (id == 6) converted = reader.i32();
    if (id == 7) element.scale = reader.i32();
    if (id == 10) has_logical = true, read_logical(reader, element);
  });
  if (converted && !has_logical) set_converted(element, *converted);
  return element;
}

void read_column_metadata(CompactReader& reader, ColumnChunk& chunk) {
  std::int64_t data_page = -1, dictionary_page = -1;
  reader.structure([&](std::int16_t id) {
    if (id == 1) chunk.type = enumerator<Physical>(reader.i32(), 7, "a column's type");
    if (id == 4) chunk.codec = enumerator<Codec>(reader.i32(), 7, "compression codec");
    if (id == 5) chunk.num_values = reader.i64();
    if (id == 7) chunk.compressed_bytes = reader.i64();
    if (id == 9) data_page = reader.i64();
    if (id == 11) dictionary_page = reader.i64();
  });
  // Some writers leave a dictionary's offset at 0 where there is none.
  chunk.first_page = dictionary_page > 0 && dictionary_page < data_page ? dictionary_page : data_page;
}

ColumnChunk read_column_chunk(CompactReader& reader) {
  ColumnChunk chunk;
  reader.structure([&](std::int16_t id) {
    if (id == 1) chunk.elsewhere = !reader.binary().empty();
    if (id == 3) read_column_metadata(reader, chunk);
    if (id == 8 || id == 9) chunk.encrypted = true;
  });
  return chunk;
}

}  // namespace

Footer read_footer(std::string_view bytes) {
  Footer footer;
  CompactReader reader(bytes);
  reader.fields([&](std::int16_t id) {
    if (id == 2)
      reader.list([&] {
        if (footer.schema.size() == kMostElements) throw Unsupported("has more than 65,536 columns");
        footer.schema.push_back(read_schema_element(reader));
      });
    if (id == 8) footer.encrypted = true;
    if (id != 4) return;
    bool first = true;
    reader.list([&] {
      if (std::exchange(first, false)) footer.row_groups = reader.position();
      reader.structure([&](std::int16_t field) {
        if (field != 3) return;
        const std::int64_t rows = reader.i64();
        if (rows < 0 || __builtin_add_overflow(rows, footer.num_rows, &footer.num_rows))
          throw Damaged("a row group has no valid number of rows");
      });
    });
  });
  return footer;
}

RowGroup read_row_group(std::string_view footer, std::size_t num_columns, std::size_t& at) {
  RowGroup group;
  CompactReader reader(footer, at);
  reader.fields([&](std::int16_t id) {
    if (id == 1)
      reader.list([&] {
        if (group.columns.size() < num_columns)
          group.columns.push_back(read_column_chunk(reader));
        else
          throw Damaged("a row group has more columns than the schema");
      });
    if (id == 3) group.num_rows = reader.i64();
  });
  if (group.columns.size() < num_columns) throw Damaged("a row group has fewer columns than the schema");
  at = reader.position();
  return group;
}

namespace {

void read_data_header(CompactReader& reader, PageHeader& page) {
  reader.structure([&](std::int16_t id) {
    if (id == 1) page.num_values = reader.i32();
    if (id == 2) page.encoding = static_cast<Encoding>(reader.i32());
    if (id == 3) page.definition_encoding = static_cast<Encoding>(reader.i32());
    if (id == 4) page.repetition_encoding = static_cast<Encoding>(reader.i32());
  });
}

void read_dictionary_header(CompactReader& reader, PageHeader& page) {
  reader.structure([&](std::int16_t id) {
    if (id == 1) page.num_values = reader.i32();
    if (id == 2) page.encoding = static_cast<Encoding>(reader.i32());
  });
}

void read_data_v2_header(CompactReader& reader, PageHeader& page) {
  reader.structure([&](std::int16_t id) {
    if (id == 1) page.num_values = reader.i32();
    if (id == 4) page.encoding = static_cast<Encoding>(reader.i32());
    if (id == 5) page.definition_bytes = reader.i32();
    if (id == 6) page.repetition_bytes = reader.i32();
    if (id == 7) page.compressed = reader.boolean();
  });
}

}  // namespace

PageHeader read_page_header(std::string_view bytes, std::size_t& length) {
  PageHeader page;
  CompactReader reader(bytes);
  reader.fields([&](std::int16_t id) {
    if (id == 1) page.type = enumerator<PageType>(reader.i32(), 3, "a page's type");
    if (id == 2) page.uncompressed_bytes = reader.i32();
    if (id == 3) page.compressed_bytes = reader.i32();
    if (id == 4) page.crc = static_cast<std::uint32_t>(reader.i32());
    if (id == 5) read_data_header(reader, page);
    if (id == 7) read_dictionary_header(reader, page);
    if (id == 8) read_data_v2_header(reader, page);
  });
  if (page.uncompressed_bytes < 0 || page.compressed_bytes < 0 || page.num_values < 0 || page.definition_bytes < 0 ||
      page.repetition_bytes < 0)
    throw Damaged("a page's header has a negative size");
  length += reader.position();
  return page;
}

}  // namespace trainer::data::parquet
