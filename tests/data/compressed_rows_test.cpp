// Files compressed by gzip and zstd have the rows of their text, whatever members or frames they are made of; and a
// file that is cut off anywhere is an error.
#include <doctest/doctest.h>
#include <zlib.h>
#include <zstd.h>

#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/data/rows.h"
#include "tests/data/read_rows.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using tests::contains;
using tests::mistake_of_rows;
using tests::read_rows;
using tests::TemporaryFolder;
using Strings = std::vector<std::string>;

std::string gzipped(std::string_view text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string compressed(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = static_cast<uInt>(compressed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  compressed.resize(stream.total_out);
  deflateEnd(&stream);
  return compressed;
}

std::string zstd_compressed(std::string_view text, int window = 0) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  if (window > 0) ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window);
  std::string compressed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_outBuffer out{compressed.data(), compressed.size(), 0};
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  // As a stream, in two steps: the frame then does not say how long its contents are, and keeps its window.
  REQUIRE(ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush) == 0);
  REQUIRE(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end) == 0);
  compressed.resize(out.pos);
  ZSTD_freeCCtx(context);
  return compressed;
}

const std::string kSkipped("\x52\x2A\x4D\x18\x03\0\0\0abc", 11);  // a frame of zstd that readers pass over

// 3 MB that pack to some 300 KB: over blocks of the file and of the text.
Strings many_rows() {
  Strings rows;
  for (std::size_t i = 0; i < 20'000; ++i)
    rows.push_back("{\"id\": " + std::to_string(i * 2654435761U % 1000003) + ", \"text\": \"" +
                   std::string(i % 250, 'a') + "\"}");
  return rows;
}

std::string joined(const Strings& rows) {
  std::string text;
  for (const std::string& row : rows) text += row + "\n";
  return text;
}

TEST_CASE("a compressed file has the rows of its text, in members or frames of any size") {
  TemporaryFolder folder;
  const Strings rows = many_rows();
  const std::string text = joined(rows);
  for (const std::size_t piece : {std::size_t{1777}, std::size_t{400'000}, text.size()}) {
    std::string gzip, zstd = kSkipped;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      gzip += gzipped(text.substr(at, piece)) + (at == 0 ? gzipped("") : "");
      zstd += zstd_compressed(text.substr(at, piece)) + (at == 0 ? zstd_compressed("") + kSkipped : "");
    }
    for (const std::string& compressed : {gzip, gzip + std::string(1000, '\0'), zstd, zstd_compressed(text, 27)}) {
      const auto read = read_rows(folder.write("a", compressed));
      CHECK(read.rows == rows);
      CHECK(read.places.back() == folder.path("a") + ":" + std::to_string(rows.size()));
      CHECK(read.bytes == static_cast<std::int64_t>(compressed.size()));
    }
  }
  CHECK(read_rows(folder.write("a", gzipped("\xEF\xBB\xBF [{}, {\"a\": 1}]"))).rows == Strings{"{}", "{\"a\": 1}"});
  CHECK(read_rows(folder.write("a", gzipped(""))).rows.empty());
  CHECK(read_rows(folder.write("a", zstd_compressed(""))).rows.empty());
}

TEST_CASE("a compressed file that is cut off anywhere is an error, and so is one with another byte behind") {
  TemporaryFolder folder;
  for (const std::string& compressed :
       {gzipped("{\"a\": 1}\n{\"b\": 2}\n"), zstd_compressed("{\"a\": 1}\n{\"b\": 2}\n")}) {
    for (std::size_t bytes = 4; bytes < compressed.size(); ++bytes) {
      const std::string said = mistake_of_rows(folder.write("a", compressed.substr(0, bytes)));
      CHECK(said ==
            folder.path("a") + ": offset " + std::to_string(bytes) +
                ": the compressed data does not end where the file ends: it was cut off; copy or download it again");
    }
    CHECK(contains(mistake_of_rows(folder.write("a", compressed + compressed.substr(0, 9))), "cut off"));
    CHECK(contains(mistake_of_rows(folder.write("a", compressed + "{\"b\": 3}\n{\"b\": 3}\n")), "damaged"));
  }
  CHECK(contains(mistake_of_rows(folder.write("a", gzipped("{}") + std::string(3, '\0') + gzipped("{}"))),
                 "data follows the padding"));
}

TEST_CASE("a damaged compressed file is an error that names the offset") {
  TemporaryFolder folder;
  const std::string text = joined(many_rows());
  // Of gzip the checksum, which alone tells for sure; of zstd anything.
  for (auto [compressed, back] : {std::pair{gzipped(text), 8}, std::pair{zstd_compressed(text), 100'000}}) {
    compressed[compressed.size() - static_cast<std::size_t>(back)] ^= 0x10;
    const std::string said = mistake_of_rows(folder.write("a", compressed));
    CHECK(contains(said, folder.path("a") + ": offset "));
    CHECK(contains(said, "the compressed data is damaged ("));
  }
}

TEST_CASE("a row longer than 64 MiB is refused, and one of 64 MiB is read") {
  TemporaryFolder folder;
  const std::string start = zstd_compressed("{\"t\":\""), mib = zstd_compressed(std::string(1 << 20, 'x'));
  std::string most;  // 64 MiB but for the eight characters around them
  for (int i = 0; i < 63; ++i) most += mib;
  most = start + most + zstd_compressed(std::string((1 << 20) - 8, 'x') + "\"}");
  const std::string path = folder.write("a", most + zstd_compressed("\n") + start + most);
  CHECK(mistake_of_rows(path) == path + ":2: is longer than 64 MiB");
  folder.write("a", zstd_compressed("[") + most + zstd_compressed(", {\"u\": ") + most);
  CHECK(mistake_of_rows(path) == path + ": row 2: is longer than 64 MiB");
}

TEST_CASE("a compressed file of another kind is refused by its name") {
  TemporaryFolder folder;
  CHECK(contains(mistake_of_rows(folder.write("a", gzipped(gzipped("{}")))),
                 "a: decompresses to a gzip file; unpack it"));
  CHECK(contains(mistake_of_rows(folder.write("a", gzipped(std::string(257, '\0') + "ustar" + std::string(300, '\0')))),
                 "a: decompresses to a tar archive; unpack it"));
}

}  // namespace
}  // namespace trainer::data
