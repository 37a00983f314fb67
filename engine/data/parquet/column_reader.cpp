// Finds, checks and decompresses pages, and splits them into levels and values.
#include "engine/data/parquet/column_reader.h"

#include <zlib.h>

#include <bit>

#include "engine/data/parquet/bits.h"

namespace trainer::data::parquet {
namespace {

constexpr std::size_t kMostHeaderBytes = std::size_t{16}
                                         << 20;  // with its statistics: the least and the greatest value
constexpr std::size_t kWindowBytes = std::size_t{1} << 18;

std::unique_ptr<ByteSource> bytes_of(const DataFile& file, const ColumnChunk& chunk) {
  if (chunk.first_page < 0 || chunk.compressed_bytes < 0 || chunk.first_page > file.bytes() ||
      chunk.compressed_bytes > file.bytes() - chunk.first_page)
    throw Damaged("its pages do not lie in the file");
  return part_bytes(file, chunk.first_page, chunk.first_page + chunk.compressed_bytes);
}

int width_of(int most) { return std::bit_width(static_cast<unsigned>(most)); }

std::string_view take_levels(std::string_view& page, Encoding encoding) {
  if (encoding != Encoding::rle) throw Unsupported("has levels in an encoding of older files, which is not read");
  const std::uint32_t bytes = take_u32(page);
  return take_bytes(page, bytes);
}

}  // namespace

ColumnReader::ColumnReader(const DataFile& file, const Leaf& leaf, const ColumnChunk& chunk)
    : leaf_(&leaf),
      codec_(chunk.codec),
      window_(bytes_of(file, chunk), kWindowBytes),
      left_in_chunk_(chunk.num_values) {
  if (chunk.encrypted) throw Unsupported("is encrypted");
  if (chunk.elsewhere) throw Unsupported("lies in another file");
  if (chunk.type != leaf.type) throw Damaged("its type in a row group is not that of the schema");
  if (left_in_chunk_ < 0) throw Damaged("it has a negative number of values");
  check_codec(codec_);
  advance();
}

PageHeader ColumnReader::next_header() {
  for (;;) {
    try {
      std::size_t length = 0;
      const PageHeader page = read_page_header(window_.text(), length);
      window_.take(length);
      return page;
    } catch (const CutOff&) {
      if (window_.text().size() > kMostHeaderBytes || !window_.more()) throw;
    }
  }
}

std::string_view ColumnReader::next_body(const PageHeader& page) {
  if (page.uncompressed_bytes > kMostPageBytes)
    throw Unsupported("has a page of more than " + std::to_string(kMostPageBytes >> 20) +
                      " MiB; write it in smaller pages");
  body_bytes_ = static_cast<std::size_t>(page.compressed_bytes);
  while (window_.text().size() < body_bytes_)
    if (!window_.more()) throw Damaged("a page ends behind its column");
  const std::string_view body = window_.text().substr(0, body_bytes_);
  if (page.crc && *page.crc != crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), body.size()))
    throw Damaged("a page's checksum does not match");
  return body;
}

// Goes to the next page with entries; false at the chunk's end.
bool ColumnReader::next_page() {
  while (left_in_page_ == 0) {
    window_.take(std::exchange(body_bytes_, 0));
    if (left_in_chunk_ == 0) {
      definition_ = -1;
      repetition_ = 0;
      return false;
    }
    const PageHeader page = next_header();
    const std::string_view body = next_body(page);
    if (page.type == PageType::dictionary) begin_dictionary(page, body);
    if (page.type == PageType::data) begin_data(page, body);
    if (page.type == PageType::data_v2) begin_data_v2(page, body);
  }
  left_in_chunk_ -= left_in_page_;
  if (left_in_chunk_ < 0) throw Damaged("its pages have more values than it should");
  return true;
}

std::string_view ColumnReader::decompressed(const PageHeader& page, std::string_view compressed, PageBuffer& buffer) {
  const auto bytes = static_cast<std::size_t>(page.uncompressed_bytes);
  if (codec_ == Codec::none) {
    if (bytes != compressed.size()) throw Damaged("a page that is not compressed has two sizes");
    return compressed;
  }
  char* out = buffer.reserve(bytes);
  decompress(codec_, compressed, out, bytes);
  return {out, bytes};
}

void ColumnReader::begin_dictionary(const PageHeader& page, std::string_view body) {
  if (dictionary_) throw Damaged("it has two dictionaries");
  if (page.encoding != Encoding::plain && page.encoding != Encoding::plain_dictionary)
    throw Unsupported("has a dictionary in an encoding that is not known");
  std::string_view values = decompressed(page, body, dictionary_page_);
  if (codec_ == Codec::none) {  // the body is in the window, which moves on
    char* kept = dictionary_page_.reserve(values.size());
    std::memcpy(kept, values.data(), values.size());
    values = {kept, values.size()};
  }
  dictionary_.emplace(*leaf_, values, static_cast<std::uint64_t>(page.num_values));
}

void ColumnReader::begin_data(const PageHeader& page, std::string_view body) {
  values_ = decompressed(page, body, page_);
  if (leaf_->most_repetition > 0)
    repetitions_ = HybridDecoder(take_levels(values_, page.repetition_encoding), width_of(leaf_->most_repetition));
  if (leaf_->most_definition > 0)
    definitions_ = HybridDecoder(take_levels(values_, page.definition_encoding), width_of(leaf_->most_definition));
  encoding_ = page.encoding;
  decoder_.reset();
  left_in_page_ = page.num_values;
}

void ColumnReader::begin_data_v2(const PageHeader& page, std::string_view body) {
  const std::string_view repetitions = take_bytes(body, static_cast<std::uint64_t>(page.repetition_bytes));
  const std::string_view definitions = take_bytes(body, static_cast<std::uint64_t>(page.definition_bytes));
  repetitions_ = HybridDecoder(repetitions, width_of(leaf_->most_repetition));
  definitions_ = HybridDecoder(definitions, width_of(leaf_->most_definition));
  PageHeader values = page;
  values.uncompressed_bytes -= page.repetition_bytes + page.definition_bytes;
  if (values.uncompressed_bytes < 0) throw Damaged("a page's levels are longer than the page");
  values_ = page.compressed ? decompressed(values, body, page_) : body;
  encoding_ = page.encoding;
  decoder_.reset();
  left_in_page_ = page.num_values;
}

void ColumnReader::make_decoder() {
  decoder_ = parquet::make_decoder(encoding_, *leaf_, values_, dictionary_ ? &*dictionary_ : nullptr);
}

}  // namespace trainer::data::parquet
