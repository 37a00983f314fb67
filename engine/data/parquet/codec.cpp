// Each codec decompresses a page as a whole. Source: parquet-format, Compression.md.
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
  throw Damaged(std::string("a page cannot be decompressed by ") + codec);
}

void decompress_snappy(std::string_view compressed, char* out, std::size_t bytes) {
  std::size_t size = 0;
  if (snappy_uncompressed_length(compressed.data(), compressed.size(), &size) != SNAPPY_OK || size != bytes ||
      snappy_uncompress(compressed.data(), compressed.size(), out, &size) != SNAPPY_OK)
    throw_damaged("snappy");
}

void decompress_zstd(std::string_view compressed, char* out, std::size_t bytes) {
  if (ZSTD_decompress(out, bytes, compressed.data(), compressed.size()) != bytes) throw_damaged("zstd");
}

bool try_lz4(std::string_view compressed, char* out, std::size_t bytes) {
  const auto size = static_cast<std::size_t>(
      LZ4_decompress_safe(compressed.data(), out, static_cast<int>(compressed.size()), static_cast<int>(bytes)));
  return size == bytes;  // an error is negative, which is then larger than any page
}

// Hadoop's framing: for each block its size, its compressed size (both 4 bytes, big-endian), and its bytes.
bool try_hadoop_lz4(std::string_view compressed, char* out, std::size_t bytes) {
  const auto take_size = [&] {
    std::size_t size = 0;
    for (const char byte : compressed.substr(0, 4)) size = size << 8 | static_cast<unsigned char>(byte);
    compressed.remove_prefix(4);
    return size;
  };
  while (compressed.size() >= 8) {
    const std::size_t block = take_size(), length = take_size();
    if (block > bytes || length > compressed.size() || !try_lz4(compressed.substr(0, length), out, block)) return false;
    compressed.remove_prefix(length);
    out += block;
    bytes -= block;
  }
  return compressed.empty() && bytes == 0;
}

void decompress_brotli(std::string_view compressed, char* out, std::size_t bytes) {
  std::size_t size = bytes;
  const auto result =
      BrotliDecoderDecompress(compressed.size(), reinterpret_cast<const std::uint8_t*>(compressed.data()), &size,
                              reinterpret_cast<std::uint8_t*>(out));
  if (result != BROTLI_DECODER_RESULT_SUCCESS || size != bytes) throw_damaged("brotli");
}

// A page may have several members.
void decompress_gzip(std::string_view compressed, char* out, std::size_t bytes) {
  constexpr int kGzipOrZlib = 32 + MAX_WBITS;
  z_stream stream{};
  if (inflateInit2(&stream, kGzipOrZlib) != Z_OK) throw std::bad_alloc();
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out);
  stream.avail_out = static_cast<uInt>(bytes);
  int result = inflate(&stream, Z_FINISH);
  while (result == Z_STREAM_END && stream.avail_in > 0 && inflateReset(&stream) == Z_OK)
    result = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  if (result != Z_STREAM_END || stream.avail_out != 0) throw_damaged("gzip");
}

}  // namespace

char* PageBuffer::reserve(std::size_t bytes) {
  if (size_ < bytes || !bytes_) {  // for no bytes too: codecs need a pointer
    bytes_ = std::make_unique_for_overwrite<char[]>(bytes);
    size_ = bytes;
  }
  return bytes_.get();
}

void check_codec(Codec codec) {
  if (codec == Codec::lzo) throw Unsupported("is compressed by LZO, which is not read; write it with zstd or snappy");
}

void decompress(Codec codec, std::string_view compressed, char* out, std::size_t bytes) {
  if (compressed.empty() && bytes == 0) return;
  switch (codec) {
    case Codec::snappy:
      return decompress_snappy(compressed, out, bytes);
    case Codec::gzip:
      return decompress_gzip(compressed, out, bytes);
    case Codec::brotli:
      return decompress_brotli(compressed, out, bytes);
    case Codec::zstd:
      return decompress_zstd(compressed, out, bytes);
    case Codec::lz4:  // writers have used it for both forms
      if (!try_hadoop_lz4(compressed, out, bytes) && !try_lz4(compressed, out, bytes)) throw_damaged("lz4");
      return;
    case Codec::lz4_raw:
      if (!try_lz4(compressed, out, bytes)) throw_damaged("lz4");
      return;
    case Codec::none:
    case Codec::lzo:
      break;
  }
  UNREACHABLE("check_codec refused it");
}

}  // namespace trainer::data::parquet
