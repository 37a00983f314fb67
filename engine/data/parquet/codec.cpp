// Each codec takes a page as a whole. Source: parquet-format, Compression.md.
#include "engine/data/parquet/codec.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

#include <new>
#include <string>

#include "engine/core/check.h"
#include "engine/data/parquet/mistakes.h"

namespace trainer::data::parquet {
namespace {

[[noreturn]] void throw_damaged(const char* codec) {
  throw Damaged(std::string("a page cannot be unpacked by ") + codec);
}

void unpack_snappy(std::string_view packed, char* out, std::size_t bytes) {
  std::size_t size = 0;
  if (snappy_uncompressed_length(packed.data(), packed.size(), &size) != SNAPPY_OK || size != bytes ||
      snappy_uncompress(packed.data(), packed.size(), out, &size) != SNAPPY_OK)
    throw_damaged("snappy");
}

void unpack_zstd(std::string_view packed, char* out, std::size_t bytes) {
  if (ZSTD_decompress(out, bytes, packed.data(), packed.size()) != bytes) throw_damaged("zstd");
}

void unpack_lz4(std::string_view packed, char* out, std::size_t bytes) {
  const int size = LZ4_decompress_safe(packed.data(), out, static_cast<int>(packed.size()), static_cast<int>(bytes));
  if (size < 0 || static_cast<std::size_t>(size) != bytes) throw_damaged("lz4");
}

void unpack_brotli(std::string_view packed, char* out, std::size_t bytes) {
  std::size_t size = bytes;
  const auto result = BrotliDecoderDecompress(packed.size(), reinterpret_cast<const std::uint8_t*>(packed.data()),
                                              &size, reinterpret_cast<std::uint8_t*>(out));
  if (result != BROTLI_DECODER_RESULT_SUCCESS || size != bytes) throw_damaged("brotli");
}

// A page may have several members.
void unpack_gzip(std::string_view packed, char* out, std::size_t bytes) {
  constexpr int kGzipOrZlib = 32 + MAX_WBITS;
  z_stream stream{};
  if (inflateInit2(&stream, kGzipOrZlib) != Z_OK) throw std::bad_alloc();
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out);
  stream.avail_out = static_cast<uInt>(bytes);
  int result = inflate(&stream, Z_FINISH);
  while (result == Z_STREAM_END && stream.avail_in > 0 && inflateReset(&stream) == Z_OK)
    result = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  if (result != Z_STREAM_END || stream.avail_out != 0) throw_damaged("gzip");
}

}  // namespace

char* PageBuffer::room(std::size_t bytes) {
  if (size_ < bytes || !bytes_) {  // of no bytes too: codecs take no null pointer
    bytes_ = std::make_unique_for_overwrite<char[]>(bytes);
    size_ = bytes;
  }
  return bytes_.get();
}

void check_codec(Codec codec) {
  if (codec == Codec::lzo) throw Unsupported("is packed by LZO, which is not read; write it with zstd or snappy");
  if (codec == Codec::lz4)
    throw Unsupported("is packed by LZ4 in its old framing, which is not read; write it with LZ4_RAW, zstd or snappy");
}

void unpack(Codec codec, std::string_view packed, char* out, std::size_t bytes) {
  if (packed.empty() && bytes == 0) return;
  switch (codec) {
    case Codec::snappy:
      return unpack_snappy(packed, out, bytes);
    case Codec::gzip:
      return unpack_gzip(packed, out, bytes);
    case Codec::brotli:
      return unpack_brotli(packed, out, bytes);
    case Codec::zstd:
      return unpack_zstd(packed, out, bytes);
    case Codec::lz4_raw:
      return unpack_lz4(packed, out, bytes);
    case Codec::none:
    case Codec::lzo:
    case Codec::lz4:
      break;
  }
  UNREACHABLE("the codec was checked");
}

}  // namespace trainer::data::parquet
